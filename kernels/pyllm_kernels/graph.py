"""Graphs on a CPU, like CUDA graphs: ops recorded once, then run again by one call, without Python.

Does not know the computation of an op. Outside of a capture the functions here do what numpy and torch do.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllm_kernels import _cpu
from pyllm_kernels.op import Op, P, R
from pyllm_kernels.tensors import Tensor, dtype_like, dtype_name, is_array, numpy_dtype


class CaptureError(ValueError):
    """An op that a graph cannot hold, as numpy computes it."""


class Graph:
    """Ops of the cpu backend, in the order in which they were called during `capture`.

    During a capture ops do not compute: they record the addresses and sizes of their arrays. So their inputs must be
    arrays that the caller fills before each replay, or weights, or outputs of other ops of the same graph. Views are
    allowed, but numpy would compute only once, at the capture, on memory without content.

    The first dimension of the arrays is the largest for a replay, and the same in every op; ops with another one, such
    as the rows of a head beside a step's tokens, are captured in their own graph. The graph keeps the arrays alive.
    Outputs are in its own memory, which later ops reuse once no array references it: keep a reference to outputs that
    are read after a replay.
    """

    def __init__(self) -> None:
        self._graph = _cpu.Graph()

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Record the ops that this thread calls.

        Raises:
            CaptureError: numpy was to compute with an output.
            RuntimeError: this thread captures already.
        """
        self._graph.begin_capture()
        _thread.graph = self
        try:
            yield
        finally:
            _thread.graph = None
            self._graph.end_capture()

    def replay(self, num_tokens: int, num_rows: int) -> None:
        """Run the ops in order for the first `num_tokens` tokens and `num_rows` sequences.

        Raises:
            ValueError: that is more than was captured.
            IndexError: a position, cell, block or token id does not exist; the ops before have run.
        """
        self._graph.replay(num_tokens, num_rows)

    @property
    def num_ops(self) -> int:
        """The number of recorded ops."""
        return self._graph.num_ops

    @property
    def num_bytes(self) -> int:
        """The bytes of memory of the outputs."""
        return self._graph.num_bytes

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        # The memory is lent as long as the array or a view of it lives.
        memory: Any = self._graph.lend(math.prod(shape) * dtype.itemsize)
        output: _Output = np.frombuffer(memory, np.uint8).view(dtype).reshape(shape).view(_Output)
        return output


def empty(shape: tuple[int, ...], like: Tensor, dtype: str = "") -> Tensor:
    """An empty tensor for the output of an op: by default of the dtype of `like`, on its device.

    It is in the memory of the graph that this thread captures, if any.
    """
    dtype = dtype or dtype_name(like.dtype)
    if not is_array(like):
        if _thread.graph is not None:
            raise CaptureError("a graph holds arrays, and this is a tensor of torch")
        return like.new_empty(shape, dtype=dtype_like(like, dtype))
    kind = numpy_dtype(dtype)
    return np.empty(shape, kind) if _thread.graph is None else _thread.graph._empty(shape, kind)


def not_captured(op: Op[P, R]) -> Callable[P, R]:
    """The reference of an op, for arguments that Rust has no kernel for.

    Raises:
        CaptureError: this thread captures a graph, which holds Rust's ops alone.
    """
    if _thread.graph is not None:
        raise CaptureError(f"{op.name} has no kernel in Rust for these arguments: only Rust's ops are captured")
    return op.version("reference")


class _Output(npt.NDArray[Any]):
    """Memory of a graph, which numpy cannot compute with during a capture."""

    def __array_finalize__(self, array: Any) -> None:
        if _thread.graph is None:
            return
        memory: Any = self
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        if memory.flags.owndata:  # It is no view of the graph's memory.
            raise _computing("a copy")

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if _thread.graph is not None:
            raise _computing(func.__name__)
        return super().__array_function__(func, types, args, kwargs)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if _thread.graph is not None:
            raise _computing(ufunc.__name__)
        arrays = [array.view(np.ndarray) if isinstance(array, _Output) else array for array in inputs]
        if "out" in kwargs:
            outs = kwargs["out"]
            kwargs["out"] = tuple(out.view(np.ndarray) if isinstance(out, _Output) else out for out in outs)
        return getattr(ufunc, method)(*arrays, **kwargs)


def _computing(what: str) -> CaptureError:
    return CaptureError(f"{what} would compute once, at the capture: only Rust's ops are captured")


class _Thread(threading.local):
    graph: Graph | None = None


_thread = _Thread()
