"""Models with random weights, made where they run: a card's machine may have no network."""

from pathlib import Path

from tests.tiny_model import write_tiny_model

# Of a model of 0.35B, in float32 on disk: a load moves real bytes, and the file is written in seconds.
_SIZES = {
    "heads": 12,
    "kv_heads": 4,
    "head_dim": 128,
    "layers": 12,
    "hidden_size": 1536,
    "intermediate_size": 4096,
    "vocab_size": 32_768,
    "max_position_embeddings": 8192,
}


def write_random_model(folder: Path, *, small: bool) -> str:
    """A folder as Hugging Face has them."""
    return write_tiny_model(folder, heads=4, kv_heads=2) if small else write_tiny_model(folder, **_SIZES)
