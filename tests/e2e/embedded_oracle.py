"""The embedded model as transformers computes it, in float32.

The sizes are those of its model card. Its weights are read by pyllm, which takes a tenth of the time of transformers'
own reader; `tests/workers/loaders/test_loaders.py` compares both, bit by bit.
"""

import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.workers.loaders.formats import weight_reader
from pyllm.workers.loaders.tensor_table import TensorTable
from tests.tiny_model import write_tiny_model

CONFIG = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_theta=100_000.0,
    tie_word_embeddings=True,
)


def embedded_oracle() -> LlamaForCausalLM:
    checkpoint = read_checkpoint()
    reader = weight_reader(checkpoint, TensorTable(checkpoint))
    names = parameter_names(len(checkpoint.spec.layers))
    weights = {}
    for entry in checkpoint.tensors:
        weights[names[entry.name]] = torch.empty(entry.shape)
        reader.read(entry.name, entry.shape, weights[names[entry.name]])
    return LlamaForCausalLM.from_pretrained(None, config=CONFIG, state_dict=weights, dtype=torch.float32).eval()


def parameter_names(num_layers: int) -> dict[str, str]:
    """Transformers' name of each tensor, as a folder of so many layers has it."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = read_checkpoint(write_tiny_model(Path(folder), layers=num_layers))
    return {entry.name: entry.source.name for entry in checkpoint.tensors}
