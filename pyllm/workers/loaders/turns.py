"""Loads weights in turns, between which the caller computes steps. Knows no model.

The loader has a thread of its own that never runs beside its caller: the kernels' threads serve one caller at a time.
"""

import threading
import time
from collections.abc import Callable, Iterable

from pyllm_kernels import MatrixRows
from pyllm_kernels.tensors import Tensor

from pyllm.workers.loaders.weights import WHOLE, WeightReader


class _GivenUpError(Exception):
    """Ends the thread of a loader that is not needed any more."""


class TurnLoader:
    """Calls `load` with a reader by `reader`; the call goes on during `advance` alone, and stops between two reads."""

    def __init__(self, load: Callable[[WeightReader], None], reader: WeightReader) -> None:
        self._load = load
        self._reader = reader
        self._may_run, self._has_stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._until = 0.0
        self._is_given_up = False
        self._error: Exception | None = None
        self.is_done = False
        self._thread = threading.Thread(target=self._run, name="weights", daemon=True)
        self._thread.start()

    def advance(self, seconds: float) -> bool:
        """Go on for so many seconds and the read after them; True if all is loaded.

        Raises:
            ConfigError: a file does not fit, or has shrunk.
        """
        if not self.is_done:
            self._until = time.perf_counter() + seconds
            self._may_run.release()
            self._has_stopped.acquire()
        if self._error is not None:
            raise self._error
        return self.is_done

    def close(self) -> None:
        """End the thread, also in the middle."""
        self._is_given_up = True
        self._may_run.release()
        self._thread.join()

    def read(self, name: str, shape: tuple[int, ...], out: Tensor, rows: slice = WHOLE, columns: slice = WHOLE) -> None:
        """See `WeightReader.read`."""
        self._take_turn()
        self._reader.read(name, shape, out, rows, columns)

    def rows(
        self,
        name: str,
        shape: tuple[int, int],
        rows: slice = WHOLE,
        columns: slice = WHOLE,
        keep_quantised: bool = False,
    ) -> MatrixRows:
        """See `WeightReader.rows`."""
        self._take_turn()
        return self._reader.rows(name, shape, rows, columns, keep_quantised)

    def release(self, names: Iterable[str]) -> None:
        """See `WeightReader.release`."""
        self._reader.release(names)

    def _take_turn(self) -> None:
        if time.perf_counter() > self._until:
            self._has_stopped.release()
            self._may_run.acquire()
            if self._is_given_up:
                raise _GivenUpError

    def _run(self) -> None:
        self._may_run.acquire()
        try:
            if not self._is_given_up:
                self._load(self)
        except _GivenUpError:
            return
        except Exception as error:  # noqa: BLE001 - `advance` raises it
            self._error = error
        self.is_done = True
        self._has_stopped.release()
