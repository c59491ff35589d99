"""The cache of packed matrices on disk, mapped by every process with the same model: ranks and restarts share pages.

A file holds one rank's matrices and ends with their index. It is written under a temporary name while they are packed,
and gets its final name once all of it is on disk. So a file of that name is always whole, even with several writers, or
if a process is killed. Does not know the use of a matrix.
"""

import fcntl
import hashlib
import logging
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import msgspec
import numpy as np
import pyllm_kernels
from pyllm_kernels import LinearLayout, PackedLinear, empty_bytes
from pyllm_kernels.tensors import Array, address, numpy_dtype

from pyllm.checkpoint.cache import cache_folder, file_identity
from pyllm.checkpoint.types import Checkpoint
from pyllm.config.engine_settings import EngineConfig
from pyllm.errors import ConfigError
from pyllm.families.parameter_shapes import num_parameters

logger = logging.getLogger(__name__)

_MAGIC = b"pyllm packed 2\n\0"
_SUFFIX, _UNFINISHED = ".packed", ".part"
_PAGE = mmap.ALLOCATIONGRANULARITY
# Below this size, packing is faster than opening a file.
LEAST_BYTES = 64 << 20
# A cache of floats from a quantised file would need several times the disk space of the file.
MAX_GROWTH = 1.25
# Free disk space to leave.
_SPARE_BYTES = 1 << 30


class _Matrix(msgspec.Struct, frozen=True, array_like=True):
    offset: int
    num_bytes: int
    format: str
    dtype: str
    in_features: int
    out_features: int
    blocks: str | None


class _Index(msgspec.Struct, frozen=True, array_like=True):
    key: str
    size: int  # bytes before the index
    matrices: dict[str, list[_Matrix]]


class CacheLocation(NamedTuple):
    """The location of packed matrices on disk, and the limit of their bytes together."""

    folder: Path
    key: str
    most_bytes: int


class PackedCache:
    """One rank's matrices by name: found in a file, or added to a new one, which `finish` publishes."""

    def __init__(self, location: CacheLocation) -> None:
        self.key = location.key
        self._content, index = _open(location.folder / f"{location.key}{_SUFFIX}", location.key)
        self._matrices = {} if index is None else index.matrices
        self._file = _Unfinished(location) if index is None else None

    def find(self, name: str) -> tuple[PackedLinear, ...] | None:
        """The matrices that were added under this name."""
        if self._content is None or name not in self._matrices:
            return None
        return tuple(_packed(self._content, matrix) for matrix in self._matrices[name])

    def room(self, num_bytes: int) -> Array:
        """Memory for a matrix to be added: part of the file, or ordinary memory if the disk is full."""
        return empty_bytes(num_bytes) if self._file is None else self._file.room(num_bytes)

    def add(self, name: str, matrices: Iterable[PackedLinear]) -> None:
        """Add matrices whose data are from `room`."""
        if self._file is not None:
            self._file.add(name, matrices)

    def finish(self) -> threading.Thread:
        """Publish the file in a background thread, and return the thread. The start does not wait for the disk.

        A process that dies before the end leaves no file of the final name.
        """
        publish = (lambda: None) if self._file is None else self._file.publish
        thread = threading.Thread(target=publish, name="keep-packed", daemon=True)
        thread.start()
        return thread


class _Unfinished:
    """A file that grows matrix by matrix. Its process holds a lock on it, so that others know that it is in use."""

    def __init__(self, location: CacheLocation) -> None:
        self._location = location
        self._matrices: dict[str, list[_Matrix]] = {}
        self._offsets: dict[int, int] = {}  # by the address of the matrix
        self._size = 0
        self._name = ""
        self._file: IO[bytes] | None = None
        try:
            _remove_abandoned(location.folder)
            while self._file is None:
                descriptor, self._name = tempfile.mkstemp(_UNFINISHED, f"{location.key}.", location.folder)
                file = os.fdopen(descriptor, "r+b")
                fcntl.flock(file, fcntl.LOCK_EX)
                if os.path.exists(self._name):  # No other process removed it as abandoned before the lock.
                    self._file = file
                else:
                    file.close()
        except OSError as error:
            self._give_up(error)

    def room(self, num_bytes: int) -> Array:
        if self._file is not None:
            try:
                self._make_room(num_bytes)
                # Reserve disk blocks first: a write to a mapped page without a disk block raises a fatal signal.
                os.posix_fallocate(self._file.fileno(), self._size, num_bytes)
                content = mmap.mmap(self._file.fileno(), num_bytes, offset=self._size)
                memory = np.frombuffer(content, np.uint8)
                self._offsets[address(memory)] = self._size
                self._size += -(-num_bytes // _PAGE) * _PAGE
                return memory
            except (OSError, ValueError) as error:
                self._give_up(error)
        return empty_bytes(num_bytes)

    def add(self, name: str, matrices: Iterable[PackedLinear]) -> None:
        self._matrices[name] = [self._described(matrix) for matrix in matrices]

    def _described(self, matrix: PackedLinear) -> _Matrix:
        layout = matrix.layout
        assert layout is not None, "a matrix that Rust has not packed"
        return _Matrix(
            self._offsets.get(address(matrix.data), -1),
            matrix.data.nbytes,
            matrix.format,
            matrix.dtype,
            layout.in_features,
            layout.out_features,
            layout.blocks,
        )

    def publish(self) -> None:
        if self._file is None:
            return
        try:
            for name, matrices in self._matrices.items():
                if any(matrix.offset < 0 for matrix in matrices):
                    raise ValueError(f"matrix {name} is not in the file")
            index = msgspec.msgpack.encode(_Index(self._location.key, self._size, self._matrices))
            self._file.seek(self._size)
            self._file.write(index + _trailer(index))
            self._file.flush()
            os.fsync(self._file.fileno())
            _touch(self._name)
            os.replace(self._name, self._location.folder / f"{self._location.key}{_SUFFIX}")
        except (OSError, ValueError) as error:
            self._give_up(error)
        else:
            self._file.close()  # Mappings stay valid.
            logger.info("keeping %.2f GB of packed weights in %s", self._size / 1e9, self._location.folder)

    def _make_room(self, num_bytes: int) -> None:
        """Remove the least recently used files until the new matrix fits into the limit and on the disk."""
        size, disk = self._size + num_bytes, os.statvfs(self._location.folder)
        if size > (most := self._location.most_bytes):
            raise ValueError(f"they need {size} bytes or more, and --packed-cache-size is {most}: raise it, or set 0")
        kept = sorted((path.stat().st_mtime, path) for path in self._location.folder.glob(f"*{_SUFFIX}"))
        excess = size + sum(path.stat().st_size for _, path in kept) - self._location.most_bytes
        missing = num_bytes + _SPARE_BYTES - disk.f_bavail * disk.f_frsize
        for _, path in kept:
            if excess <= 0 and missing <= 0:
                return
            freed = path.stat().st_size
            path.unlink()  # Processes that have mapped it keep its pages.
            excess, missing = excess - freed, missing - freed
        if missing > 0:
            raise ValueError(f"the disk lacks {missing} bytes: free them, or set --packed-cache-size 0")

    def _give_up(self, error: Exception) -> None:
        logger.warning(
            "packed weights are not kept in %s, so the next start packs again: %s", self._location.folder, error
        )
        if self._file is not None:
            Path(self._name).unlink(missing_ok=True)
            self._file.close()
            self._file = None


def open_packed_cache(engine: EngineConfig, checkpoint: Checkpoint, rank: int) -> PackedCache | None:
    """The cache of a rank's matrices; None if none are packed, or the cache is off or would not pay."""
    model, ranks = engine.model, engine.parallel.tensor_parallel_size
    is_packed = engine.device.device == "cpu" and engine.device.kernel_backend in {"auto", "cpu"} and checkpoint.files
    size = sum(entry.source.num_bytes for entry in checkpoint.tensors)
    if not (is_packed and model.packed_cache_size and size >= LEAST_BYTES):
        return None
    # Weights in fp8 also become floats on a CPU.
    are_floats = model.quantization == "none" or any(entry.source.type == "F8_E4M3" for entry in checkpoint.tensors)
    float_bytes = num_parameters(checkpoint.spec) * numpy_dtype(model.dtype).itemsize
    if are_floats and float_bytes > MAX_GROWTH * size:
        return None
    try:
        folder = cache_folder()
    except ConfigError as error:
        logger.warning("packed weights are not kept, so the next start packs again: %s", error)
        return None
    files = [file_identity(file) for file in checkpoint.files]
    is_native = checkpoint.spec.transformers is None
    place = (rank, ranks, engine.parallel.pipeline_parallel_size, engine.parallel.enable_expert_parallel, is_native)
    weights = (checkpoint.fingerprint, files, model.dtype, model.quantization, *place)
    return PackedCache(CacheLocation(folder, _key(weights), model.packed_cache_size))


def _key(parts: Sequence[object]) -> str:
    """The key of packed matrices: a digest of `parts`, of the packing code, and of the processor's instruction set."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((pyllm_kernels.instruction_set(), *parts)).encode())
    kernels = Path(pyllm_kernels.__file__).parent
    # These files determine the packed bytes, so the key changes with them: no version number needs to be raised.
    home = Path(__file__).parents[2]
    code = [*kernels.glob("_cpu*.so"), kernels / "ops" / "packed_linear.py", kernels / "matrix_rows.py"]
    for folder in (home / "families", home / "workers" / "loaders", home / "workers" / "layers"):
        code += folder.glob("*.py")
    for module in sorted(code):
        digest.update(module.read_bytes())
    return digest.hexdigest()


def _packed(content: mmap.mmap, matrix: _Matrix) -> PackedLinear:
    data: Array = np.frombuffer(content, np.uint8, matrix.num_bytes, matrix.offset)
    layout = LinearLayout(matrix.format, matrix.dtype, matrix.in_features, matrix.out_features, matrix.blocks)
    if matrix.format == matrix.dtype:
        data = data.view(numpy_dtype(matrix.dtype))
    return PackedLinear(data, matrix.format, matrix.dtype, layout)


def _open(path: Path, key: str) -> tuple[mmap.mmap | None, _Index | None]:
    """Map a file; (None, None) if its index is damaged or has another key."""
    try:
        with path.open("rb") as file:
            # A private mapping, which nothing writes to: torch warns about read-only memory.
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        length = int.from_bytes(content[-_TRAILER_BYTES : -_TRAILER_BYTES + 8], "little")
        start = len(content) - _TRAILER_BYTES - length
        index = content[max(start, 0) : max(start, 0) + length]
        if start < 0 or content[-_TRAILER_BYTES:] != _trailer(index):
            return None, None
        found = msgspec.msgpack.decode(index, type=_Index)
        if (found.key, found.size) != (key, start):
            return None, None
        with suppress(OSError):  # a read-only folder
            _touch(path)
        content.madvise(mmap.MADV_WILLNEED)
    except (OSError, ValueError, msgspec.DecodeError):
        return None, None
    return content, found


def _touch(path: Path | str) -> None:
    """Mark a file as used now, with the clock's whole precision, unlike the time of a write."""
    os.utime(path, ns=(time.time_ns(), time.time_ns()))


def _trailer(index: bytes) -> bytes:
    return len(index).to_bytes(8, "little") + hashlib.blake2b(index, digest_size=16).digest() + _MAGIC


_TRAILER_BYTES = len(_trailer(b""))


def _remove_abandoned(folder: Path) -> None:
    """Remove files whose writers died."""
    for path in folder.glob(f"*{_UNFINISHED}"):
        try:
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        except OSError:  # It is being written, or another process has removed it.
            continue
