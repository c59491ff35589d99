"""A tiny random encoder of each kind, written by transformers."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from pyllm_kernels.tensors import Array
from transformers import PreTrainedModel

from tests.tiny_model import write_tokenizer

CONTEXT = 128
_SIZES: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
}
_ROBERTA = {"max_position_embeddings": CONTEXT + 2, "pad_token_id": 1}
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", {}),
    "bert-relu": ("Bert", {"hidden_act": "relu", "layer_norm_eps": 1e-5}),
    "roberta": ("Roberta", _ROBERTA | {"type_vocab_size": 1}),
    "xlm-roberta": ("XLMRoberta", _ROBERTA | {"type_vocab_size": 1}),
    "nomic-bert": ("NomicBert", {}),
}
"""Transformers' class without `Model`, and what its config.json has beside the sizes."""


@functools.cache
def encoder(name: str) -> PreTrainedModel:
    """The model, in float32; its numbers are large enough that each changes the result."""
    kind, fields = ENCODERS[name]
    torch.manual_seed(len(name))
    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**_SIZES | fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            number = noise * 0.2 if parameter.ndim > 1 else parameter + noise * 0.2
            parameter.copy_(number.half())  # as in the GGUF files
    return model


@torch.inference_mode()
def expected(name: str, prompt: Sequence[int], pooling: str) -> Array:
    """The embedding by transformers, pooled by `mean` or `cls`: float64 [hidden_size], of length 1."""
    states = encoder(name)(torch.tensor([prompt])).last_hidden_state[0].double()
    vector = (states.mean(dim=0) if pooling == "mean" else states[0]).numpy()
    found: Array = vector / np.linalg.norm(vector)
    return found


def write_tiny_encoder(folder: Path, name: str, pooling: str = "mean") -> str:
    """Write the model, a byte-level tokenizer and the pooling; gives the folder as a string."""
    encoder(name).save_pretrained(str(folder))
    write_tokenizer(folder, merges=["Ġ t", "h e", "i n", "a n"])
    (folder / "1_Pooling").mkdir(parents=True)
    mode = {"mean": "mean_tokens", "cls": "cls_token"}[pooling]
    (folder / "1_Pooling/config.json").write_text(f'{{"pooling_mode_{mode}": true}}')
    return str(folder)
