"""The description of a model's files, as structs: architecture, tensor table, tokenizer; and what they must fulfil.

Reads no file but the beginnings of tensors. Knows neither torch nor transformers.
"""

import hashlib
import math
from pathlib import Path

import msgspec

from pyllm.errors import ConfigError


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a decoder-only transformer, in the names of Hugging Face's `config.json`."""

    architecture: str  # for example LlamaForCausalLM
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    dtype: str  # of the file: float32, bfloat16, float16, or for a quantised file float32


class TensorEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where one tensor lies. `name` is Hugging Face's, whatever the file calls it; `shape` is in torch's order."""

    name: str
    type: str  # F32, F16, BF16, Q4_0, Q4_1, Q8_0 ...
    shape: tuple[int, ...]
    file: int  # index into `Checkpoint.files`
    offset: int  # bytes from the start of the file
    num_bytes: int


class TokenizerFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What the frontend needs to turn text into token ids and back.

    `path` is a `tokenizers` JSON, whose own post-processor puts the BOS token first where the model wants it. An absent
    token is an empty string.
    """

    path: str
    chat_template: str | None
    bos_token: str
    eos_token: str
    eos_token_ids: tuple[int, ...]


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One model on disk.

    `fingerprint` is a hash of the tensor table and of the beginning of each tensor, equal on every machine that has the
    same model; hashing all of the bytes would take longer than loading them.
    """

    name: str  # for the API, unless the user names it otherwise
    format: str  # gguf or safetensors
    files: tuple[str, ...]
    architecture: Architecture
    tensors: tuple[TensorEntry, ...]
    tokenizer: TokenizerFiles
    fingerprint: str


def check_tensor_parallel(architecture: Architecture, ranks: int) -> None:
    """Refuse a tensor-parallel size that would cut through an attention head or leave the ranks unequal.

    Raises:
        ConfigError: with the sizes that would work.
    """
    parts = {
        "attention heads": architecture.num_attention_heads,
        "key/value heads": architecture.num_key_value_heads,
        "columns of the feed-forward layer": architecture.intermediate_size,
    }
    uneven = [f"{count} {name}" for name, count in parts.items() if count % ranks]
    if uneven:
        common = math.gcd(*parts.values())
        sizes = ", ".join(str(size) for size in range(1, common + 1) if common % size == 0)
        raise ConfigError(
            f"tensor_parallel_size {ranks} does not divide {' and '.join(uneven)}; sizes that work here: {sizes}"
        )


def weights_dtype(tensors: tuple[TensorEntry, ...]) -> str:
    """The dtype that all matrices share; float32 where they do not, and where they are quantised."""
    types = {entry.type for entry in tensors if len(entry.shape) > 1}
    return {"F16": "float16", "BF16": "bfloat16"}.get(types.pop(), "float32") if len(types) == 1 else "float32"


def weights_fingerprint(files: tuple[str, ...], tensors: tuple[TensorEntry, ...]) -> str:
    """BLAKE2b over each tensor's name, type, shape and first 4 KiB, in the order of their names."""
    digest = hashlib.blake2b(digest_size=16)
    opened = [Path(file).open("rb") for file in files]  # noqa: SIM115  closed below, all together
    try:
        for entry in sorted(tensors, key=lambda entry: entry.name):
            digest.update(msgspec.msgpack.encode((entry.name, entry.type, entry.shape, entry.num_bytes)))
            opened[entry.file].seek(entry.offset)
            digest.update(opened[entry.file].read(min(entry.num_bytes, 4096)))
    finally:
        for file in opened:
            file.close()
    return digest.hexdigest()
