"""Finds the safetensors files of a folder and reads their headers. Reads no weights, and knows no parameter of a model.

Format: https://github.com/huggingface/safetensors#format
"""

import logging
import math
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pyllm.checkpoint.hub_files import INDEX, choose_safetensors, models_alone, shards
from pyllm.checkpoint.json_files import refuse_pointer
from pyllm.errors import ConfigError
from pyllm.families.tensors import FileTensor

logger = logging.getLogger(__name__)

_ELEMENT_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
# Name parts such as _orig_mod. of torch.compile, _fsdp_wrapped_module. or _checkpoint_wrapped_module.; then prefixes.
_WRAPPER = re.compile(r"(?:^|(?<=\.))_[a-z_]+_mod(?:ule)?\.")
_WRAPPED = re.compile(r"^(?:module\.|pretrained_model\.)+")
# The format's own limit on a header.
_MAX_HEADER_BYTES = 100_000_000


class _Tensor(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_tensors(folder: Path) -> tuple[tuple[str, ...], tuple[FileTensor, ...]]:
    """The files of a folder that make up its model, and their tensors.

    Raises:
        ConfigError: files are missing or damaged, or a tensor is in two of them.
    """
    indexed = shards(folder / INDEX) if (folder / INDEX).is_file() else []
    names = choose_safetensors(str(folder), [path.name for path in folder.iterdir() if path.is_file()], indexed)
    if indexed and set(names) - set(indexed):
        fault = "lacks files" if set(indexed) <= set(names) else "names files that are not there"
        logger.warning("%s: %s %s; reading %s", folder, INDEX, fault, ", ".join(names))
    paths = [folder / name for name in names]
    entries = [entry for number, path in enumerate(paths) for entry in read_file(path, number)]
    first: dict[str, int] = {}
    for entry in entries:
        if (other := first.setdefault(entry.name, entry.file)) != entry.file:
            raise ConfigError(
                f"{folder}: tensor {entry.name!r} is in {names[other]} and in {names[entry.file]}: leave one copy of "
                f"the model there, or the {INDEX} of one"
            )
    return tuple(str(path) for path in paths), tuple(_renamed(entries))


def unread_files(files: Sequence[str]) -> list[str]:
    """The safetensors files beside those of a model that could be parts of it."""
    folder, names = Path(files[0]).parent, {Path(file).name for file in files}
    return [name for name in models_alone(path.name for path in folder.iterdir()) if name not in names]


def _renamed(tensors: list[FileTensor]) -> list[FileTensor]:
    """The tensors without the name parts of torch's wrappers and trl; one present under both names is kept once.

    The scale and bias of a layer norm have the names of today: in BERT's first files they are `gamma` and `beta`.
    """
    names = {tensor.name for tensor in tensors}
    renamed = []
    for tensor in tensors:
        name = _WRAPPED.sub("", _WRAPPER.sub("", tensor.name))
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if name == tensor.name or name not in names:
            renamed.append(msgspec.structs.replace(tensor, name=name))
    return renamed


def read_file(path: Path, number: int) -> list[FileTensor]:
    """The tensors of one file, the `number`th of its checkpoint.

    Raises:
        ConfigError: the file is damaged.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _MAX_HEADER_BYTES):
            file.seek(0)
            refuse_pointer(path, file.read(64))
            raise ConfigError(f"{path} is damaged: it is {size} bytes long and announces a header of {length}")
        header = file.read(length)
    start = 8 + length
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        tensors = {name: msgspec.json.decode(tensor, type=_Tensor) for name, tensor in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: its header does not decode: {error}") from error
    entries = []
    for name, tensor in tensors.items():
        begin, end = tensor.data_offsets
        num_bytes = end - begin
        if tensor.dtype in _ELEMENT_BYTES:  # Other types may be present in tensors that the model does not need.
            num_bytes = math.prod(tensor.shape) * _ELEMENT_BYTES[tensor.dtype]
        if not 0 <= begin <= end <= size - start or end - begin != num_bytes:
            raise ConfigError(
                f"{path} is damaged: {name} {tensor.shape} lies at bytes {begin} to {end} of {size - start}"
            )
        entries.append(FileTensor(name, tensor.dtype, tensor.shape, number, start + begin, end - begin))
    covered = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        if tensor.data_offsets[0] != covered:
            raise ConfigError(f"{path} is damaged: {name} begins at byte {tensor.data_offsets[0]}, not at {covered}")
        covered = max(covered, tensor.data_offsets[1])
    if covered != size - start:
        raise ConfigError(f"{path} is damaged: its tensors have {covered} bytes, and it has room for {size - start}")
    return entries
