"""Stands where CUDA captures a graph: records launches, refuses what a capture refuses, and replays what it recorded.

A launch is one op of torch, or one op of `launching` kernels, into which nobody looks, as it would be one of Triton.
"""

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from pyllm_kernels import Kernels
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.wrapped_kernels import WrappedKernels

# What waits for the device, or allocates pinned memory. Some never reach the dispatcher for a tensor on a CPU. Streams
# and events raise of their own accord where there is no CUDA.
REFUSED_OPS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_pin_memory", "_unique2", "bincount"}
# In inference mode ops that others make up reach the dispatcher whole.
REFUSED_OPS |= {"allclose", "argwhere", "is_nonzero", "nonzero_numpy", "one_hot", "tensor_split", "unique_consecutive"}
REFUSED_METHODS = {"item", "tolist", "cpu", "numpy", "pin_memory", "__bool__", "__int__", "__float__", "__index__"}
REFUSED_METHODS |= {"__array__", "new_tensor"}
REFUSED_FUNCTIONS = {"tensor", "as_tensor", "from_numpy"}  # They copy from memory that is not pinned.


class NotCapturableError(Exception):
    """A graph cannot hold it."""


@dataclass(frozen=True)
class _Outside:
    """A tensor of memory that the graph does not own, and does not keep alive either."""

    storage: StorageWeakRef
    view: tuple[int, torch.Size, tuple[int, ...]]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "_Outside":
        view = tensor.storage_offset(), tensor.size(), tensor.stride()
        return cls(StorageWeakRef(tensor.untyped_storage()), view, tensor.dtype)

    def tensor(self) -> Tensor:
        if self.storage.expired():
            raise NotCapturableError(f"the graph reads memory {list(self.view[1])} that has been freed")
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        return torch.empty(0, dtype=self.dtype).set_(storage, *self.view)


@dataclass(frozen=True)
class _Launch:
    function: Callable[..., Any]
    arguments: Any
    keywords: Any
    output: Any


class _Graph:
    """What was launched, in order, and the memory of all outputs."""

    def __init__(self) -> None:
        self.launches: list[_Launch] = []
        self._outside: set[int] = set()
        self._own: set[int] = set()

    def launch(self, function: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        self._outside |= {_memory(tensor) for tensor in _tensors((arguments, keywords))} - self._own
        held = _mapped(self._hold, arguments), _mapped(self._hold, keywords)
        output = function(*arguments, **keywords)
        self._own |= {_memory(tensor) for tensor in _tensors(output)} - self._outside
        self.launches.append(_Launch(function, *held, _mapped(self._hold, output)))
        return output

    def replay(self) -> None:
        for launch in self.launches:
            arguments, keywords = _mapped(_found, launch.arguments), _mapped(_found, launch.keywords)
            again = launch.function(*arguments, **keywords)
            for part in again if isinstance(again, tuple) else (again,):
                if isinstance(part, torch.ScriptObject):  # A collective between CPUs. GPUs wait by their streams.
                    part.wait()
            for before, now in zip(_tensors(_mapped(_found, launch.output)), _tensors(again), strict=True):
                if before.data_ptr() != now.data_ptr():
                    before.copy_(now)

    def num_bytes(self) -> int:
        """The memory that the graph has taken."""
        parts = [part for launch in self.launches for part in _tensors(launch.output) if isinstance(part, Tensor)]
        return sum({_memory(part): part.untyped_storage().nbytes() for part in parts}.values())

    def _hold(self, tensor: Tensor) -> Any:
        """What a launch keeps of a tensor: the whole of it, where the graph owns its memory."""
        return _Outside.of(tensor) if _memory(tensor) in self._outside else tensor


class _Garbage(TorchDispatchMode):
    """What nobody has written is not a number."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        return _spoil(output) if func.overloadpacket.__name__.startswith("empty") else output


class FakeCapture:
    """A `Capture`. Graphs share their memory: what one has given is lost when another is replayed."""

    def __init__(self, free_bytes: Callable[[], int] = lambda: 1 << 40, *, warm_up: bool = True) -> None:
        self.free_bytes = free_bytes
        self._warm_up = warm_up
        self.replays: list[int] = []
        self.launches: list[int] = []
        self.num_bytes: list[int] = []
        self.collectives: list[list[str]] = []  # of each graph
        self._outputs: list[Tensor] = []
        self._recording: _Graph | None = None
        self._is_launching = False

    def __call__(self, compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        if self._warm_up:
            with _Garbage():
                compute()
        graph = _Graph()
        with self._record(graph):
            output = compute()
        gc.collect()
        self.launches.append(len(graph.launches))
        self.num_bytes.append(graph.num_bytes())
        names = [getattr(launch.function, "_schema", None) for launch in graph.launches]
        self.collectives.append([schema.name[6:] for schema in names if schema and schema.name.startswith("c10d::")])
        self._outputs.append(output)

        def replay() -> None:
            self.replays.append(len(output))
            for other in self._outputs:
                _spoil(other)
            with _Garbage():
                graph.replay()

        return output, replay

    def launching(self, kernels: Kernels) -> Kernels:
        """Kernels each of which is one launch."""
        return WrappedKernels(kernels, lambda name, op: self.launched(op))

    def launched(self, op: Callable[..., Any]) -> Callable[..., Any]:
        def launch(*arguments: Any, **keywords: Any) -> Any:
            if self._recording is None or self._is_launching:
                return op(*arguments, **keywords)
            self._is_launching = True
            try:
                return self._recording.launch(op, arguments, keywords)
            finally:
                self._is_launching = False

        return launch

    def _record(self, graph: _Graph) -> AbstractContextManager[Any]:
        capture = self

        class Methods(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                kwargs, name = kwargs or {}, getattr(func, "__name__", "")
                refused = name in REFUSED_METHODS | REFUSED_FUNCTIONS or kwargs.get("pin_memory")
                refused = refused or _moves_to_the_host(name, args, kwargs) or _selects_by_a_number(name, args)
                if refused and not capture._is_launching:
                    raise NotCapturableError(name)
                return func(*args, **kwargs)

        class Ops(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                kwargs, name = kwargs or {}, func.overloadpacket.__name__
                if capture._is_launching:
                    return func(*args, **kwargs)
                if name in REFUSED_OPS or _asks_for_a_size(name, args, kwargs):
                    raise NotCapturableError(name)
                return graph.launch(func, args, kwargs)

        stack = ExitStack()
        stack.enter_context(_Garbage())
        stack.enter_context(Ops())
        stack.enter_context(Methods())
        self._recording = graph
        stack.callback(setattr, self, "_recording", None)
        return stack


def _asks_for_a_size(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether numbers on the device decide how large an op's result is."""
    if name in ("index", "index_put", "index_put_"):
        return any(part.dtype in (torch.bool, torch.uint8) for part in _tensors(args[1:2]))
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None and bool(_tensors(args[1:2]) or len(args) == 1)
    return name == "where" and len(args) == 1


def _moves_to_the_host(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a tensor is to be on the CPU by that name; the device of the model, which is a CPU here, has none."""
    return name == "to" and "cpu" in (part for part in (*args[1:], *kwargs.values()) if isinstance(part, str))


def _selects_by_a_number(name: str, args: Any) -> bool:
    """Whether an index is a number on the device, which the host would have to know."""
    if name not in ("__getitem__", "__setitem__"):
        return False
    parts = args[1] if isinstance(args[1], tuple) else (args[1],)
    return any(isinstance(part, Tensor) and part.dim() == 0 for part in parts)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """`value` with each tensor in it, or what stands for one, replaced."""
    if isinstance(value, (Tensor, _Outside)):
        return function(value)
    if isinstance(value, dict):
        return {key: _mapped(function, each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_mapped(function, each) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _mapped(function, getattr(value, field.name)) for field in fields(value)})
    return value


def _found(part: Any) -> Tensor:
    return part.tensor() if isinstance(part, _Outside) else part


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _mapped(lambda tensor: found.append(tensor) or tensor, value)
    return found


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _spoil(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return tensor.fill_(torch.nan)
    return tensor.fill_(1 if tensor.dtype is torch.bool else torch.iinfo(tensor.dtype).max)
