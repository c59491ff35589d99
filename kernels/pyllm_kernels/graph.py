"""Graphs on a CPU, like CUDA graphs: ops recorded once, then run again by one call, without Python.

Does not know the computation of an op. Outside of a capture the functions here do what torch does.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from pyllm_kernels import _cpu

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


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

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        num_bytes = dtype.itemsize
        for size in shape:
            num_bytes *= size
        # The memory is lent as long as the tensor or a view of it lives.
        return torch.frombuffer(self._graph.lend(num_bytes), dtype=dtype).view(shape)

    def _keep(self, tensors: tuple[Tensor, ...]) -> None:
        self._kept += (tensor for tensor in tensors if not self._graph.owns(tensor.data_ptr()))


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """An empty tensor for the output of an op, in the memory of the graph that this thread captures, if any."""
    graph = _thread.graph
    return torch.empty(shape, dtype=dtype, device=device) if graph is None else graph._empty(shape, dtype)


def keep(*tensors: Tensor) -> None:
    """Keep tensors whose addresses an op uses alive as long as the graph that this thread captures, if any."""
    if _thread.graph is not None:
        _thread.graph._keep(tensors)


def not_captured(op: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Wrap an op that torch computes, so that it raises a `CaptureError` during a capture."""

    @wraps(op)
    def run(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        if _thread.graph is not None:
            raise CaptureError(
                f"{op.__name__} is torch's here, as Rust has none for these dtypes: only Rust's ops are captured"
            )
        return op(*args, **kwargs)

    return run


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
