"""Compiles grammars: each text once, one after another on its own thread, short ones first.

Knows texts and their waiting times, but not how one is compiled, no rows and no masks.
"""

import atexit
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TypeVar
from weakref import ReferenceType, WeakValueDictionary, ref

from llguidance import LLMatcher

from pyllm.errors import RequestError

# The longest wait of a text in seconds. The cost of one text is bounded elsewhere, but not the number of texts.
WAIT_SECONDS = 30.0
# A text goes before an earlier one if that is longer by more than this for each second between them: short texts do
# not wait for long ones, and long ones do not wait for ever.
BYTES_PER_SECOND = 10_000
# The longest delay by a text's length, in seconds: each text must get its turn before `WAIT_SECONDS` are over.
MAX_HANDICAP = WAIT_SECONDS / 2
# The number of compiled grammars kept for later requests. The largest within the limits take some 60 MB each: 1 GB.
NUM_KEPT = 16

# Grammars may be nested as deeply as their text is long, and the library recurses: with a stack of 8 MB, a chain of
# 1,000 references ends the process. Pages of the stack that are not touched use no memory.
STACK_BYTES = 1 << 30

# A thread that returns from the library while the interpreter ends would crash the process. So exit waits this long for
# the current grammar. One that takes longer may still return in the short time that is left; that is accepted.
_SECONDS_AT_EXIT = 2.0
_THREAD_NAME = "compile-grammars"


T = TypeVar("T")


class NotNowError(RequestError):
    """A grammar was not compiled, for a reason outside of it; the next request may try it again."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Compilation:
    """One text in the queue. It is not compiled if nothing references this object when its turn comes."""

    text: str
    came: float  # seconds, on the queue's clock
    future: "Future[LLMatcher]" = field(default_factory=Future)  # copy its matcher, do not advance it


class CompileQueue:
    """A queue for `compile_one`, which compiles a text or raises, on the queue's thread. All methods return at once."""

    def __init__(self, compile_one: Callable[[str], LLMatcher], clock: Callable[[], float] = time.monotonic) -> None:
        self._compile_one = compile_one
        self._clock = clock
        self._lock = threading.Lock()  # guards all fields below
        self._known: WeakValueDictionary[str, Compilation] = WeakValueDictionary()
        self._kept: OrderedDict[str, Compilation] = OrderedDict()  # compiled ones, the last used at the end
        self._waiting: list[tuple[float, int, ReferenceType[Compilation]]] = []  # a heap by rank
        self._numbers = count()
        self._thread: threading.Thread | None = None  # None if the queue is empty

    def compile(self, text: str) -> Compilation:
        """The compilation of a text, new or shared; it is dropped from the queue when nothing references it."""
        with self._lock:
            compilation = self._known.get(text)
            if compilation is None:
                compilation = self._known[text] = Compilation(text, self._clock())
                rank = compilation.came + min(len(text) / BYTES_PER_SECOND, MAX_HANDICAP)
                heappush(self._waiting, (rank, next(self._numbers), ref(compilation)))
            elif text in self._kept:
                self._kept.move_to_end(text)
            reason = "" if self._thread is not None or not self._waiting else self._start()
            refused = self._take_all() if reason else []
        _refuse(refused, reason)
        return compilation

    def close(self) -> None:
        """End the thread after its current grammar, without waiting for it."""
        with self._lock:
            self._waiting.clear()

    def _start(self) -> str:
        """Start a thread; return the reason if that fails, else an empty text."""
        thread = threading.Thread(target=self._compile_waiting, name=_THREAD_NAME, daemon=True)
        others = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        except RuntimeError as error:
            return f"no thread could be started to compile the grammar: {error}; try again later"
        finally:
            threading.stack_size(others)
        self._thread = thread
        return ""

    def _take_all(self) -> list[Compilation]:
        waiting = [compilation for *_, waits in self._waiting if (compilation := waits()) is not None]
        self._waiting.clear()
        for compilation in waiting:
            del self._known[compilation.text]
        return waiting

    def _compile_waiting(self) -> None:
        compilation = self._next(None)
        while compilation is not None:
            settle(compilation.future, partial(self._compile_one, compilation.text))
            compilation = self._next(compilation)

    def _next(self, done: Compilation | None) -> Compilation | None:
        """The thread's next compilation after `done`; None if it is to end."""
        with self._lock:
            if done is not None:
                self._keep(done)
            late = self._take_late()
            current = None
            while self._waiting and current is None:
                current = heappop(self._waiting)[-1]()
            if current is None:
                self._thread = None
        _refuse(late, f"the grammar waited {WAIT_SECONDS:g} s while others were compiled; try again later")
        return current

    def _take_late(self) -> list[Compilation]:
        """Remove and return compilations that waited too long; also remove those that nothing references."""
        since = self._clock() - WAIT_SECONDS
        late, waiting = [], []
        for entry in self._waiting:
            compilation = entry[-1]()
            if compilation is None:
                continue
            if compilation.came < since:
                late.append(compilation)
                del self._known[compilation.text]
            else:
                waiting.append(entry)
        heapify(waiting)
        self._waiting = waiting
        return late

    def _keep(self, compilation: Compilation) -> None:
        if isinstance(compilation.future.exception(), NotNowError):
            self._known.pop(compilation.text, None)
            return
        self._kept[compilation.text] = compilation
        if len(self._kept) > NUM_KEPT:
            self._kept.popitem(last=False)


def settle(future: "Future[T]", work: Callable[[], T]) -> None:
    """Set a future to the result of some work, or to its error, unless the future is done already."""
    try:
        give = partial(future.set_result, work())
    except BaseException as error:  # noqa: BLE001 - passed on to the waiter
        give = partial(future.set_exception, error)
    with suppress(InvalidStateError):
        give()


def _refuse(compilations: list[Compilation], reason: str) -> None:
    for compilation in compilations:
        with suppress(InvalidStateError):
            compilation.future.set_exception(NotNowError(reason))


@atexit.register
def _wait_at_exit() -> None:
    until = time.monotonic() + _SECONDS_AT_EXIT
    for thread in threading.enumerate():
        if thread.name == _THREAD_NAME:
            thread.join(max(0.0, until - time.monotonic()))
