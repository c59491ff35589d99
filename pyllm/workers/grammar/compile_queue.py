"""Compiles grammars: each text once, one after another on a thread of its own, short ones first.

Knows texts and how long they wait, but not how one is compiled, no rows and no masks.
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
from weakref import ReferenceType, WeakValueDictionary, ref

from llguidance import LLMatcher

from pyllm.errors import RequestError
from pyllm.workers.grammar.fair_thread import settle

# Seconds that a text may wait for its turn. What one costs is bounded elsewhere, but not how many there are.
WAIT_SECONDS = 30.0
# A text goes before another that came earlier and is longer by this much for each second between them, so that short
# ones do not wait for long ones, nor long ones for ever.
BYTES_PER_SECOND = 10_000
# The most that its length puts a text off, in seconds: it must have its turn before it has waited too long.
MAX_HANDICAP = WAIT_SECONDS / 2
# Compiled grammars that are kept for the next request. The largest that the limits allow take some 60 MB each: 1 GB.
NUM_KEPT = 16

# Grammars may be nested as deeply as their text is long, and the library recurses: with 8 MB, 1,000 references of
# which each leads to the next end the process. Memory that is not reached is not used.
STACK_BYTES = 1 << 30

# A thread that leaves the library while the interpreter ends would crash the process. So what is nearly compiled gets
# these seconds at the end. What takes longer may come back within the moment that is left; that is accepted.
_SECONDS_AT_EXIT = 2.0
_THREAD_NAME = "compile-grammars"


class NotNowError(RequestError):
    """A grammar was not compiled for a reason that is not its own; the next request may ask for it again."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Compilation:
    """One text on its way. It is not compiled if nobody holds this when its turn comes."""

    text: str
    came: float  # seconds, on the queue's clock
    future: "Future[LLMatcher]" = field(default_factory=Future)  # its matcher is to be copied, not moved


class CompileQueue:
    """`compile_one` makes a matcher of a text, or raises, on a thread of its own. Every method returns at once."""

    def __init__(self, compile_one: Callable[[str], LLMatcher], clock: Callable[[], float] = time.monotonic) -> None:
        self._compile_one = compile_one
        self._clock = clock
        self._lock = threading.Lock()  # for all that follows
        self._known: WeakValueDictionary[str, Compilation] = WeakValueDictionary()
        self._kept: OrderedDict[str, Compilation] = OrderedDict()  # of the known, those used last and compiled
        self._waiting: list[tuple[float, int, ReferenceType[Compilation]]] = []  # a heap: what comes first, by rank
        self._numbers = count()
        self._thread: threading.Thread | None = None  # there is none where nothing waits

    def compile(self, text: str) -> Compilation:
        """What a text becomes, or the error that it is refused with, for as long as somebody holds this."""
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
        """End the thread after what it does, without waiting for it."""
        with self._lock:
            self._waiting.clear()

    def _start(self) -> str:
        """Start a thread; or why there is none."""
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
        """What the thread is to do after what it did; None: it is to end."""
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
        """Those that have waited too long, of which nothing more is known then; and forget those nobody wants."""
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
