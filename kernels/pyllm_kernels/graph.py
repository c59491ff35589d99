"""Graphs on a CPU, like CUDA graphs: ops recorded once, then run again by one call, without Python.

Does not know the computation of an op. Outside of a capture the functions here do what torch does.
"""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from pyllm_kernels import _cpu
from pyllm_kernels.op import Op
from pyllm_kernels.tensors import Tensor, address, dtype_name, is_array, numpy_dtype
from pyllm_kernels.torch_bridge import as_tensor


class CaptureError(ValueError):
    """An op that a graph cannot hold, as torch computes it."""


class Graph:
    """Ops of the cpu backend, in the order in which they were called during `capture`.

    During a capture ops do not compute: they record the addresses and sizes of their tensors. So their inputs must be
    tensors that the caller fills before each replay, or weights, or outputs of other ops of the same graph. Views are
    allowed, but an op of torch that computes would do so only once, at the capture, on memory without content.

    The first dimension of the tensors is the largest for a replay, and the same in every op; ops with another one, such
    as the rows of a head beside a step's tokens, are captured in their own graph. The graph keeps the tensors alive.
    Outputs are in its own memory, which later ops reuse once no tensor references it: keep a reference to outputs that
    are read after a replay.
    """

    def __init__(self) -> None:
        self._graph = _cpu.Graph()
        self._kept: list[Tensor] = []

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Record the ops that this thread calls.

        Raises:
            CaptureError: an op of torch was called.
            RuntimeError: this thread captures already.
        """
        self._graph.begin_capture()
        _thread.graph = self
        try:
            with _OnlyViews():  # type: ignore[no-untyped-call]  # torch gives modes no types.
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
        memory = np.frombuffer(self._graph.lend(math.prod(shape) * dtype.itemsize), np.uint8)
        return memory.view(dtype).reshape(shape).view(_Output)

    def _keep(self, tensors: tuple[Tensor, ...]) -> None:
        self._kept += (tensor for tensor in tensors if not self._graph.owns(address(tensor)))


def empty(shape: tuple[int, ...], like: Tensor, dtype: str = "") -> Tensor:
    """An empty tensor for the output of an op: by default of the dtype of `like`, on its device.

    It is in the memory of the graph that this thread captures, if any.
    """
    graph, dtype = _thread.graph, dtype or dtype_name(like.dtype)
    if graph is None and not is_array(like):
        return like.new_empty(shape, dtype=getattr(torch, dtype))
    if graph is None:
        return np.empty(shape, numpy_dtype(dtype))
    memory = graph._empty(shape, numpy_dtype(dtype))
    return memory if is_array(like) else as_tensor(memory.view(np.ndarray))


def keep(*tensors: Tensor) -> None:
    """Keep tensors whose addresses an op uses alive as long as the graph that this thread captures, if any."""
    if _thread.graph is not None:
        _thread.graph._keep(tensors)


def not_captured(op: Any) -> Any:
    """The reference of an op for dtypes that Rust has no kernel for.

    Raises:
        CaptureError: this thread captures a graph, which holds Rust's ops alone.
    """
    if _thread.graph is not None:
        name = op.name if isinstance(op, Op) else op.__name__
        raise CaptureError(f"{name} has no kernel for these dtypes: only Rust's ops are captured")
    return op.version("reference") if isinstance(op, Op) else op  # Functions of torch are not ported yet.


class _Output(npt.NDArray[Any]):
    """Memory of a graph, which numpy cannot compute with during a capture."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if _thread.graph is not None:
            raise CaptureError(f"{ufunc} would compute once, at the capture: only Rust's ops are captured")
        arrays = [array.view(np.ndarray) if isinstance(array, _Output) else array for array in inputs]
        if "out" in kwargs:
            outs = kwargs["out"]
            kwargs["out"] = tuple(out.view(np.ndarray) if isinstance(out, _Output) else out for out in outs)
        return getattr(ufunc, method)(*arrays, **kwargs)


class _OnlyViews(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as above
    """Refuses every op of torch that is not a view."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, so that torch does not import its compiler for the first op, which takes seconds."""
        return False

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not func.is_view:
            raise CaptureError(f"{func} would compute once, at the capture: only Rust's ops are captured")
        return func(*args, **(kwargs or {}))


class _Thread(threading.local):
    graph: Graph | None = None


_thread = _Thread()
