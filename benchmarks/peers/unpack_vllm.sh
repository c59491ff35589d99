#!/usr/bin/env bash
# Puts the Python source of vLLM into FOLDER/vllm; needs a package index. Builds nothing.
# usage: unpack_vllm.sh FOLDER
set -euo pipefail
folder=$(mkdir -p "${1:?usage: unpack_vllm.sh FOLDER}" && realpath "$1")
# The version whose names the tests compare with ours.
version=0.33.0

if [ ! -d "$folder/vllm" ]; then
  # pip would build it to know its metadata. uv unpacks it first, and then finds no build tools in this environment.
  "${PYTHON:?set PYTHON to the interpreter of the environment of make setup}" -m venv --without-pip "$folder/empty"
  "${UV:?set UV to uv}" pip install --quiet --no-deps --no-binary vllm --no-build-isolation --python "$folder/empty" \
    --cache-dir "$folder/cache" "vllm==$version" 2>"$folder/uv.log" || true
  mv "$folder"/cache/sdists-*/pypi/vllm/"$version"/*/src/vllm "$folder/vllm" || { cat "$folder/uv.log" >&2; exit 1; }
  rm -rf "$folder/cache" "$folder/empty" "$folder/uv.log"
fi
