"""Models with random weights, made where they run: a card's machine may have no network."""

from pathlib import Path

from tests.tiny_model import write_tiny_model

# The sizes of a 0.35B model, in float32 on disk: large enough for a real load, and written in seconds.
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
    """Write a random model as a Hugging Face folder."""
    return write_tiny_model(folder, heads=4, kv_heads=2) if small else write_tiny_model(folder, **_SIZES)
