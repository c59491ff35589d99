#!/usr/bin/env bash
# Builds what `make bench-peers` compares pyllm with: llama.cpp for this processor, and the embedded model in its formats.
# usage: install_peers.sh FOLDER      PYTHON is the environment's that `make setup` made. Needs gcc, g++ and a package index.
set -euo pipefail
folder=$(mkdir -p "${1:?usage: install_peers.sh FOLDER}" && realpath "$1")
python=${PYTHON:?set PYTHON to the interpreter of the environment of make setup}
llama=$folder/llama

if [ ! -x "$llama/bin/llama-perplexity" ]; then
  rm -rf "$llama/src"
  PYTHON=$python "$(dirname "$0")/unpack_llama.sh" "$llama"
  "$llama/tools/bin/pip" install --quiet cmake ninja
  # The intrinsic of GCC 12 claims to read 8 of the 64 bytes of a tile configuration: the compiler leaves the others out,
  # and quantised models crash on processors with AMX.
  sed --in-place 's|^ *_tile_loadconfig(&tc);|    __asm__ volatile("" : : "r"(\&tc) : "memory");\n&|' \
    "$llama/src/ggml/src/ggml-cpu/amx/mmq.cpp"
  export PATH="$llama/tools/bin:$PATH"
  cmake -S "$llama/src" -B "$llama/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF
  programs=(llama-server llama-quantize llama-perplexity)
  cmake --build "$llama/build" --target "${programs[@]}"
  mkdir -p "$llama/bin"
  cp "${programs[@]/#/$llama/build/bin/}" "$llama/bin"
fi

[ -f "$folder/hf/model.safetensors" ] || "$python" -m benchmarks.peers.peer_models "$folder/hf"

if [ ! -f "$folder/gguf/q8_0.gguf" ]; then
  mkdir -p "$folder/gguf"
  # The converter imports it whether the model has a SentencePiece vocabulary or not.
  "$python" -m pip install --quiet --no-deps --target "$llama/converter" sentencepiece
  PYTHONPATH="$llama/converter" "$python" "$llama/src/convert_hf_to_gguf.py" "$folder/hf" --outtype bf16 --outfile "$folder/gguf/bf16.gguf"
  "$llama/bin/llama-quantize" "$folder/gguf/bf16.gguf" "$folder/gguf/q8_0.gguf" Q8_0
fi
