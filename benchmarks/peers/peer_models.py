"""Models in transformers, with all weights as floats; the embedded one as a folder for peers without GGUF.

`python -m benchmarks.peers.peer_models FOLDER` writes it in bfloat16. llama.cpp's own tools make the other GGUF
files from it (`install_peers.sh`).
"""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.checkpoint.types import Checkpoint


def main() -> None:
    (folder,) = sys.argv[1:]
    checkpoint = read_checkpoint("")
    model, tokenizer = transformers_model(checkpoint, torch.bfloat16), transformers_tokenizer(checkpoint)
    # A reader of the folder must not look for a GGUF file.
    model.config.quantization_config = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def transformers_model(checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    """A causal language model of transformers, dense."""
    path, file = _place(checkpoint)
    if file:
        file["quantization_config"] = GgufConfig(dequantize=True)
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, **file)


def transformers_tokenizer(checkpoint: Checkpoint) -> Any:
    """The tokenizer of transformers for a model."""
    path, file = _place(checkpoint)
    return AutoTokenizer.from_pretrained(path, **file)


def _place(checkpoint: Checkpoint) -> tuple[Path, dict[str, Any]]:
    path = Path(checkpoint.files[0])
    return path.parent, {"gguf_file": path.name} if checkpoint.format == "gguf" else {}


if __name__ == "__main__":
    main()
