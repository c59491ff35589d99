"""Reads the header of a GGUF file: fields and tensor table, of all parts of a split one. Knows no model.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The gguf package reads headers, too, but takes 2 s
for 49,152 tokens; this module takes 0.1 s.
"""

import itertools
import logging
import math
import mmap
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pyllm.checkpoint.gguf_types import FLOAT_TYPES, REQUANTISED_TYPES, TENSOR_TYPES, WITH_KERNELS
from pyllm.checkpoint.json_files import refuse_pointer
from pyllm.errors import ConfigError
from pyllm.families.tensors import FileTensor

logger = logging.getLogger(__name__)

_VERSIONS = (2, 3)
_CUT_OFF = "is its download complete?"
_MAX_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
# Format characters of `struct` and `memoryview`, by GGUF's number of a field's type.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)


class Header(NamedTuple):
    """The data before the weights of a model's file, or of all files of a split one."""

    fields: dict[str, Any]
    tensors: list[FileTensor]
    files: tuple[str, ...]


def read_header(path: Path) -> Header:
    """The header of a file; for a split model, that of its first part, with the tensors of all parts.

    Raises:
        ConfigError: a file is damaged, its version or a tensor type is not supported, or a part is missing.
    """
    fields, tensors = _read_part(path, 0)
    parts = fields.get("split.count", 1)
    if not isinstance(parts, int) or parts <= 1:
        return Header(fields, tensors, (str(path),))
    files = part_paths(path, parts)
    tensors = []
    for number, file in enumerate(files):
        part_fields, part_tensors = _read_part(file, number)
        if (part_fields.get("split.no"), part_fields.get("split.count")) != (number, parts):
            raise ConfigError(f"{file} says that it is part {part_fields.get('split.no')} of a model, not {number}")
        if number == 0:
            fields = part_fields
        tensors += part_tensors
    wanted = fields.get("split.tensors.count", len(tensors))
    if wanted != len(tensors):
        raise ConfigError(f"the {parts} parts of {files[0]} have {len(tensors)} tensors, and should have {wanted}")
    return Header(fields, tensors, tuple(map(str, files)))


def part_paths(path: Path, parts: int) -> list[Path]:
    """The paths of all parts of a split model, in the folder of one of them.

    Raises:
        ConfigError: the name of `path` is not that of a part, or another part is missing.
    """
    names = part_names(path.name)
    if len(names) != parts:
        raise ConfigError(f"{path} is one of {parts} parts: name it as llama.cpp does, ...-00001-of-{parts:05}.gguf")
    files = [path.with_name(name) for name in names]
    if missing := [file.name for file in files if not file.is_file()]:
        raise ConfigError(f"{path} is one of {parts} parts, of which {', '.join(missing[:5])} are not beside it")
    return files


def part_names(name: str) -> list[str]:
    """The names of all parts of the split model that `name` is a part of; for any other file, `name` alone."""
    found = _PART.search(name)
    if found is None:
        return [name]
    stem, parts = name[: found.start()], int(found[2])
    return [f"{stem}-{number:05}-of-{parts:05}{name[-5:]}" for number in range(1, parts + 1)]


def _read_part(path: Path, file: int) -> tuple[dict[str, Any], list[FileTensor]]:
    try:
        with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _Reader(content).read(path, file)
    except (ValueError, struct.error, OSError) as error:
        raise ConfigError(f"{path} is not a GGUF file that can be read: {error}") from error


class _Reader:
    """Reads a file from its start. Every length is checked before it is used."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self._size = len(content)
        self._at = 0
        self._replaced = 0  # number of texts that are not UTF-8

    def read(self, path: Path, file: int) -> tuple[dict[str, Any], list[FileTensor]]:
        if self._take(4) != b"GGUF":
            refuse_pointer(path, self._content[:64])
            raise ValueError("it does not begin with GGUF")
        version = self._number("I")
        if version not in _VERSIONS:
            raise ValueError(f"its version is {version}, and only {' and '.join(map(str, _VERSIONS))} are known")
        num_tensors, num_fields = self._number("Q"), self._number("Q")
        fields: dict[str, Any] = {}
        for _ in range(self._fits(num_fields, 13)):
            name = self._string()
            if name in fields:
                raise ValueError(f"the field {name!r:.80} is there twice")
            fields[name] = self._value(self._number("I"))
            if self._replaced:
                logger.warning(
                    "%s: %d texts in %r are not UTF-8: invalid bytes were replaced", path, self._replaced, name
                )
                self._replaced = 0
        infos = [self._tensor_info() for _ in range(self._fits(num_tensors, 24))]
        alignment = fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"general.alignment is {alignment!r:.80}, and must be a power of two")
        start = -(-self._at // alignment) * alignment
        tensors = [self._tensor(path, file, start, *info) for info in infos]
        in_order = sorted(tensors, key=lambda tensor: tensor.offset)
        for before, after in itertools.pairwise(in_order):
            if before.offset + before.num_bytes > after.offset:
                raise ValueError(f"tensors {before.name!r:.80} and {after.name!r:.80} overlap")
        return fields, tensors

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name, num_dimensions = self._string(), self._number("I")
        if num_dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name!r:.80} has {num_dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(num_dimensions))[::-1]
        return name, shape, self._number("I"), self._number("Q")

    def _tensor(self, path: Path, file: int, start: int, *info: Any) -> FileTensor:
        name, shape, kind, offset = info
        if kind not in TENSOR_TYPES:
            raise ConfigError(f"{path}: tensor {name!r:.80} has the type {kind}, which is not known")
        kind_name, block_elements, block_bytes = TENSOR_TYPES[kind]
        if kind_name not in FLOAT_TYPES | WITH_KERNELS | REQUANTISED_TYPES.keys():
            raise ConfigError(
                f"tensor {name!r:.80} has type {kind_name}, which is not supported: use a file of another quantisation"
            )
        if not shape or shape[-1] % block_elements:
            raise ConfigError(f"tensor {name!r:.80}: rows of {shape[-1:]} do not fill blocks of {block_elements}")
        num_bytes = math.prod(shape) // block_elements * block_bytes
        if start + offset + num_bytes > self._size:
            end = start + offset + num_bytes
            raise ValueError(f"tensor {name!r:.80} ends at byte {end} of {self._size}; {_CUT_OFF}")
        return FileTensor(name, kind_name, shape, file, start + offset, num_bytes)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        return self._number(self._code(kind))

    def _array(self) -> list[Any]:
        kind, count = self._number("I"), self._number("Q")
        if kind == _ARRAY:
            raise ValueError("a field is an array of arrays")
        if kind != _STRING:
            code = self._code(kind)
            size = struct.calcsize(code)
            return list(struct.unpack(f"<{count}{code}", self._take(self._fits(count, size) * size)))
        return self._strings(self._fits(count, 8))

    def _strings(self, count: int) -> list[str]:
        """Read `count` strings. Faster than calling `_string`: a vocabulary has hundreds of thousands."""
        content, at, size = self._content, self._at, self._size
        length_of: Callable[..., tuple[int]] = struct.Struct("<Q").unpack_from
        texts = []
        for _ in range(count):
            start = at + 8
            at = start + length_of(content, at)[0]
            if at > size:
                raise ValueError(f"a text ends at byte {at} of {size}; {_CUT_OFF}")
            texts.append(content[start:at])
        self._at = at
        try:
            return [text.decode() for text in texts]
        except UnicodeDecodeError:
            return [self._text(text) for text in texts]

    def _string(self) -> str:
        return self._text(self._take(self._fits(self._number("Q"), 1)))

    def _text(self, content: bytes) -> str:
        try:
            return content.decode()
        except UnicodeDecodeError:
            self._replaced += 1
            return content.decode(errors="replace")

    def _number(self, code: str) -> Any:
        return struct.unpack("<" + code, self._take(struct.calcsize(code)))[0]

    def _code(self, kind: int) -> str:
        if kind not in _NUMBERS:
            raise ValueError(f"a field has the type {kind}, which is not known")
        return _NUMBERS[kind]

    def _fits(self, count: int, least_bytes: int) -> int:
        """`count`, once it is checked that as many elements of `least_bytes` or more fit into the rest of the file."""
        if count * least_bytes > self._size - self._at:
            raise ValueError(f"a field has {count} elements in a file of {self._size} bytes; {_CUT_OFF}")
        return count

    def _take(self, length: int) -> bytes:
        taken = self._content[self._at : self._at + length]
        if len(taken) < length:
            raise ValueError(f"it ends at byte {self._size}, in the middle of its header; {_CUT_OFF}")
        self._at += length
        return taken
