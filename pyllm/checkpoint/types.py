"""The description of a model's files, as structs: what it computes, its tensors, its tokenizer.

Reads only small tensors and the beginnings of others. Knows neither torch nor transformers.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from pyllm.checkpoint.generation_config import SamplingDefaults
from pyllm.checkpoint.pooling.embedding_config import EmbeddingSpec
from pyllm.errors import ConfigError
from pyllm.families.spec import ModelSpec
from pyllm.families.tensors import FileTensor, TensorEntry

_PIECE = 2**24
_BUFFERS = ("I64", "BOOL")  # such as positions and masks
_BESIDE_LAYERS = ("position_embedding.", "type_embedding.", "dense.")


def read_tensor(tensor: FileTensor, files: Sequence[str]) -> bytes:
    """The bytes of a small tensor.

    Raises:
        ConfigError: the file has become shorter.
    """
    with Path(files[tensor.file]).open("rb") as file:
        file.seek(tensor.offset)
        content = file.read(tensor.num_bytes)
    if len(content) != tensor.num_bytes:
        raise ConfigError(f"tensor {tensor.name!r} ends behind the end of its file: was the file changed just now?")
    return content


def have_same_content(one: FileTensor, other: FileTensor, files: Sequence[str]) -> bool:
    """Whether two tensors are equal in type, shape and every byte; large ones are read piece by piece."""
    if (one.type, one.shape) != (other.type, other.shape):
        return False
    pieces = (
        tuple(
            msgspec.structs.replace(tensor, offset=tensor.offset + at, num_bytes=min(_PIECE, tensor.num_bytes - at))
            for tensor in (one, other)
        )
        for at in range(0, one.num_bytes, _PIECE)
    )
    return all(read_tensor(first, files) == read_tensor(second, files) for first, second in pieces)


class TokenizerFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The tokenizer data with which the frontend converts text to token ids and back.

    `path` is a `tokenizers` JSON, whose post-processor puts the BOS token first where the model needs it. An absent
    token is an empty string. Each of `eos_token_ids` ends an answer: these are `own_ends`, which the tokenizer names,
    and the end tokens of its model.
    """

    path: str
    chat_template: str | None
    tool_chat_template: str | None = None  # replaces `chat_template` in requests with tools
    bos_token: str
    eos_token: str
    eos_token_ids: tuple[int, ...]
    num_tokens: int  # of the vocabulary, without added tokens
    own_ends: tuple[int, ...] = ()

    def with_ends(self, ends: Iterable[int], spec: ModelSpec) -> "TokenizerFiles":
        """A copy that also has the end tokens of a model; ids beyond its vocabulary are dropped."""
        named = {*self.own_ends, *ends}
        return msgspec.structs.replace(
            self, eos_token_ids=tuple(sorted(index for index in named if 0 <= index < spec.vocab_size))
        )


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One model on disk.

    `fingerprint` is a hash of the tensor table and of the beginning of each tensor, equal on every machine that has the
    same model; hashing all of the bytes would take longer than loading them. `skipped` names the tensors that the text
    model does not need. `sampling` has the defaults of requests, `embedding` those of embeddings. `quantization` is the
    method by which safetensors are quantised, empty where they are not. `version` is a digest of all weights if they
    have replaced others in a running engine; empty for those that it was started with.
    """

    name: str  # for the API, unless the user names it otherwise
    format: str  # gguf, safetensors or dummy
    files: tuple[str, ...]  # empty for dummy weights
    spec: ModelSpec
    tensors: tuple[TensorEntry, ...]
    tokenizer: TokenizerFiles
    fingerprint: str
    sampling: SamplingDefaults = SamplingDefaults()
    embedding: EmbeddingSpec = EmbeddingSpec()
    skipped: tuple[str, ...] = ()
    quantization: str = ""
    version: str = ""


def check_vocabulary(tokenizer: TokenizerFiles, spec: ModelSpec) -> None:
    """Refuse a tokenizer of another model.

    It may have fewer tokens than the embedding has rows, since many models pad the rows. Added tokens may exceed them:
    a prompt with such a token is refused.

    Raises:
        ConfigError: the numbers do not match.
    """
    if not spec.vocab_size * 7 // 8 <= tokenizer.num_tokens <= spec.vocab_size:
        raise ConfigError(
            f"the tokenizer {tokenizer.path} has {tokenizer.num_tokens} tokens and the model's embedding "
            f"{spec.vocab_size} rows: it is of another model"
        )


def check_unchanged(checkpoint: Checkpoint) -> None:
    """Refuse files that have changed: a restarted core or worker would continue requests with another model.

    Raises:
        ConfigError: the beginnings of tensors differ from those when the checkpoint was read.
    """
    if weights_fingerprint(checkpoint.files, checkpoint.tensors) != checkpoint.fingerprint:
        raise ConfigError(
            f"the files of the model ({checkpoint.files[0]} ...) are not those that pyllm was started with: restore "
            "them, or start the server again"
        )


def weights_dtype(entries: Sequence[TensorEntry]) -> str:
    """The dtype that all matrices share; float32 where they do not, and where they are quantised.

    Tables of positions and of types count as vectors do: llama.cpp's converter keeps both in float32. So do layers
    after pooling.
    """
    own = (entry for entry in entries if entry.quantised is None and not entry.name.startswith(_BESIDE_LAYERS))
    matrices = (entry.source for entry in own)
    types = {tensor.type for tensor in matrices if len(tensor.shape) > 1 and tensor.type not in _BUFFERS}
    return {"F16": "float16", "BF16": "bfloat16"}.get(types.pop(), "float32") if len(types) == 1 else "float32"


def weights_fingerprint(files: tuple[str, ...], entries: Sequence[TensorEntry]) -> str:
    """BLAKE2b over each tensor's name, type, shape and first 4 KiB, in the order of their names.

    For quantised tensors also over layout, bits, block and zero offset, which a config.json may give.
    """
    digest = hashlib.blake2b(digest_size=16)
    tensors = [tensor for entry in entries for tensor in entry.file_tensors]
    for entry in entries:
        if (found := entry.quantised) is not None:
            digest.update(msgspec.msgpack.encode((found.layout, found.bits, found.block, found.zero_offset)))
    opened = [Path(file).open("rb") for file in files]  # noqa: SIM115  closed below, all together
    try:
        for tensor in sorted(tensors, key=lambda tensor: tensor.name):
            digest.update(msgspec.msgpack.encode((tensor.name, tensor.type, tensor.shape, tensor.num_bytes)))
            if not files:  # dummy weights
                continue
            opened[tensor.file].seek(tensor.offset)
            digest.update(opened[tensor.file].read(min(tensor.num_bytes, 4096)))
    finally:
        for file in opened:
            file.close()
    return digest.hexdigest()


class AdapterMatrices(msgspec.Struct, frozen=True, array_like=True):
    """The two matrices that change one parameter: its weight grows by `scale * up @ down`.

    `entry` has the parameter's name, its shape and the order of its rows; its source is in no file.
    """

    entry: TensorEntry
    down: FileTensor  # [rank, in_features]
    up: FileTensor  # [out_features of the source, rank]
    scale: float

    @property
    def rank(self) -> int:
        return self.down.shape[0]


class LoraAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """One adapter on disk. `digest` is a hash of all of its bytes, and of its configuration."""

    path: str
    files: tuple[str, ...]
    digest: str
    rank: int  # the largest one
    matrices: tuple[AdapterMatrices, ...]
