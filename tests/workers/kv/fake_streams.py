"""Stands where `torch.cuda` has streams and events: queues work, and runs it in any order that both allow.

On tensors in host memory. Of torch's ops it queues copies, lets views pass, and refuses all others, as they would
allocate memory or wait for the device.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyllm_kernels import Kernels
from torch.utils._python_dispatch import TorchDispatchMode

from tests.wrapped_kernels import WrappedKernels


class NotQueuedError(Exception):
    """No stream can take it without an allocation or a wait."""


@dataclass(eq=False)
class Work:
    """What a stream was given, with what must be done before it."""

    name: str
    run: Callable[[], object]
    before: frozenset["Work"]
    is_done: bool = False

    def is_ready(self) -> bool:
        """Whether it may run now."""
        return all(work.is_done for work in self.before)


@dataclass(eq=False)
class FakeEvent:
    """`torch.cuda.Event`: stands for the work that a stream had when it was last recorded."""

    before: frozenset[Work] = frozenset()
    is_ignored: bool = False

    def record(self, stream: "FakeStream") -> None:
        """Stand for all work of the stream up to now."""
        self.before = stream.before


@dataclass(eq=False)
class FakeStream:
    """`torch.cuda.Stream`: its next work comes after `before`."""

    before: frozenset[Work] = frozenset()

    def wait_event(self, event: FakeEvent) -> None:
        """Have later work follow that of the event."""
        if not event.is_ignored:
            self.before |= event.before


@dataclass(eq=False)
class FakeStreams:
    """Streams, of which one is the current one; waits for the event of number `ignored` have no effect."""

    ignored: int | None = None
    events: list[FakeEvent] = field(default_factory=list)
    log: list[str] = field(default_factory=list)  # the names of what has run
    _pending: list[Work] = field(default_factory=list)
    _current: FakeStream = field(default_factory=FakeStream)

    def Stream(self, device: object = None) -> FakeStream:  # noqa: N802 - torch's name
        return FakeStream()

    def Event(self) -> FakeEvent:  # noqa: N802 - torch's name
        self.events.append(FakeEvent(is_ignored=len(self.events) == self.ignored))
        return self.events[-1]

    def current_stream(self, device: object = None) -> FakeStream:
        """The stream that takes work now."""
        return self._current

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        """Give work to another stream meanwhile."""
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    def launch(self, name: str, run: Callable[[], object]) -> None:
        """Give work to the current stream."""
        work = Work(name, run, self._current.before)
        self._current.before = frozenset((work,))
        self._pending.append(work)

    def launching(self, kernels: Kernels) -> Kernels:
        """Kernels that the current stream takes as work."""
        return WrappedKernels(kernels, self._launched)

    def queueing(self) -> AbstractContextManager[object]:
        """Have the current stream take torch's copies, too."""
        streams = self

        class Queue(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if func.is_view:
                    return func(*args, **(kwargs or {}))
                name = func.overloadpacket.__name__
                if name != "copy_" or not (kwargs or {}).get("non_blocking", len(args) > 2 and args[2]):
                    raise NotQueuedError(name)
                streams.launch(name, partial(func, *args, **(kwargs or {})))
                return args[0]

        return Queue()

    def finish(self, choose: Callable[[list[Work]], Work]) -> None:
        """Run all work; `choose` says what is next of what may run, of which the first was launched first."""
        while self._pending:
            work = choose([work for work in self._pending if work.is_ready()])
            self._pending.remove(work)
            work.run()
            work.is_done = True
            self.log.append(work.name)

    def _launched(self, name: str, op: Callable[..., Any]) -> Callable[..., None]:
        return lambda *args, **kwargs: self.launch(name, partial(op, *args, **kwargs))
