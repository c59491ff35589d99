"""A reader of weights that reports its progress. Knows no format."""

from collections.abc import Callable, Iterable

from pyllm_kernels import MatrixRows
from pyllm_kernels.tensors import Tensor

from pyllm.checkpoint.types import Checkpoint
from pyllm.workers.loaders.weights import WHOLE, WeightReader


class ProgressReader:
    """Reads by `reader`; calls `advance` with the fraction of the bytes whose parameters have been read."""

    def __init__(self, reader: WeightReader, checkpoint: Checkpoint, advance: Callable[[float], None]) -> None:
        self._reader = reader
        self._unread = {entry.name: entry.source.num_bytes for entry in checkpoint.tensors}
        self._total = sum(self._unread.values())
        self._num_read = 0
        self._advance = advance

    def read(self, name: str, shape: tuple[int, ...], out: Tensor, rows: slice = WHOLE, columns: slice = WHOLE) -> None:
        """See `WeightReader.read`."""
        self._reader.read(name, shape, out, rows, columns)
        self._note(name)

    def rows(
        self,
        name: str,
        shape: tuple[int, int],
        rows: slice = WHOLE,
        columns: slice = WHOLE,
        keep_quantised: bool = False,
    ) -> MatrixRows:
        """See `WeightReader.rows`."""
        found = self._reader.rows(name, shape, rows, columns, keep_quantised)
        self._note(name)
        return found

    def release(self, names: Iterable[str]) -> None:
        """See `WeightReader.release`."""
        self._reader.release(names)

    def _note(self, name: str) -> None:
        """Count a parameter and report progress; for a parameter that is read in pieces, the first piece counts."""
        self._num_read += self._unread.pop(name, 0)
        self._advance(self._num_read / self._total)
