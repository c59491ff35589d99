"""Steps without Python: the ops on a CPU, recorded once, then run again by one call. Like a CUDA graph.

It does not know what the ops compute. Outside of a capture the functions here do what torch does.
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
    """A graph cannot hold an op, as it is torch's."""


class Graph:
    """Ops of the cpu backend, in the order in which they were called during `capture`.

    While it captures, no op computes: it notes its tensors' addresses and sizes. So the tensors given to it must be
    those that the caller fills before each replay, or weights, or outputs of other ops of the same graph. Views of them
    may be made, but an op of torch's own that computes would do so once, at the capture, on memory that holds nothing
    yet.

    The first dimension of the tensors is the most that a replay can have of it, and the same in every op; what has
    another, such as the rows of a head beside a step's tokens, is captured in a graph of its own. The graph keeps the
    tensors alive. Outputs lie in its own memory, which the next op takes over once no tensor lies in it any more: one
    to be read after a replay must be held.
    """

    def __init__(self) -> None:
        self._graph = _cpu.Graph()
        self._kept: list[Tensor] = []

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Record the ops that this thread calls. `RuntimeError` where it captures already.

        Raises:
            CaptureError: torch was asked to compute something.
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
        """Run the ops in order for the first so many tokens and sequences.

        `ValueError` where that is more than was captured, and `IndexError` where a position, cell, block or token id
        names nothing; the ops before that one have run then.
        """
        self._graph.replay(num_tokens, num_rows)

    @property
    def num_ops(self) -> int:
        """How many ops were recorded."""
        return self._graph.num_ops

    @property
    def num_bytes(self) -> int:
        """How much memory the outputs take."""
        return self._graph.num_bytes

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        num_bytes = dtype.itemsize
        for size in shape:
            num_bytes *= size
        # The tensor's memory, whatever views it has, holds the lease.
        return torch.frombuffer(self._graph.lend(num_bytes), dtype=dtype).view(shape)

    def _keep(self, tensors: tuple[Tensor, ...]) -> None:
        self._kept += (tensor for tensor in tensors if not self._graph.owns(tensor.data_ptr()))


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """The output of an op: in the memory of the graph that this thread captures, if it does."""
    graph = _thread.graph
    return torch.empty(shape, dtype=dtype, device=device) if graph is None else graph._empty(shape, dtype)


def keep(*tensors: Tensor) -> None:
    """Tensors that an op has pointed to: they live as long as the graph that this thread captures, if it does."""
    if _thread.graph is not None:
        _thread.graph._keep(tensors)


def not_captured(op: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """The same op, which is no kernel of ours. `CaptureError` where it is called during a capture."""

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
        """False, so that torch does not import its compiler for the first op, which takes seconds."""
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
