"""Compiles grammars: each text once, one after another on a thread of its own, within limits of work and of time.

Knows llguidance's texts and what they may cost, but no rows and no masks.
"""

import atexit
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from weakref import ReferenceType, WeakValueDictionary, ref

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from pyllm.errors import RequestError
from pyllm.workers.grammar_sizes import check_schemas

T = TypeVar("T")

# Seconds that one grammar may take to be compiled.
COMPILE_SECONDS = 10.0
# Threads that compile what was given up. Each keeps a core busy and holds memory, and nothing can end it.
MAX_STUCK = 4
# Compiled grammars that are kept for the next request. The largest that the limits allow take some 60 MB each: 1 GB.
NUM_KEPT = 16
# llguidance counts work, not time, so whether a grammar is refused depends on itself alone. Each limit is as low as
# grammars that are used allow: 100,000 of fuel compile an enumeration of 5,000 texts, 300,000 a step let three patterns
# meet in one string, and 5,000 items in a row are 1,250 optional properties of one object. Grammars that are not JSON
# schemas may be ambiguous, where a step's work grows with the square of a row's items. On a core of 2024 a mask then
# takes 41 ms at most, but for one that ends in an error: 160 ms, where a repetition forces 100 KB at once.
_SCHEMA_ITEMS, _OTHER_ITEMS = 5_000, 500

# Grammars may be nested as deeply as their text is long, and the library recurses: with 8 MB, 1,000 references of
# which each leads to the next end the process. Memory that is not reached is not used.
_STACK_BYTES = 1 << 30


# A thread that leaves the library while the interpreter ends would crash the process. So what is nearly compiled gets
# these seconds at the end. What is stuck may then still come back within the moment that is left; that is accepted.
_SECONDS_AT_EXIT = 2.0
_THREAD_NAME = "compile-grammars"


@dataclass(slots=True, weakref_slot=True, eq=False)
class Compilation:
    """One text on its way. It is not compiled if nobody holds this when its turn comes."""

    text: str
    future: "Future[LLMatcher]" = field(default_factory=Future)  # its matcher is to be copied, not moved
    began: float = math.inf


class GrammarCompiler:
    """`compile_one` makes a matcher of a text, or raises, on a thread of its own. Every method returns at once."""

    def __init__(self, compile_one: Callable[[str], LLMatcher], clock: Callable[[], float] = time.monotonic) -> None:
        self._compile_one = compile_one
        self._clock = clock
        self._lock = threading.Lock()  # for all that follows
        self._known: WeakValueDictionary[str, Compilation] = WeakValueDictionary()
        self._kept: OrderedDict[str, Compilation] = OrderedDict()  # of the known, those used last and compiled
        self._waiting: deque[ReferenceType[Compilation]] = deque()
        self._thread: threading.Thread | None = None  # there is none where nothing waits
        self._current: Compilation | None = None
        self._num_stuck = 0

    def compile(self, text: str) -> Compilation:
        """What a text becomes, or the error that it is refused with, for as long as somebody holds this."""
        with self._lock:
            compilation = self._known.get(text)
            if compilation is None:
                compilation = self._known[text] = Compilation(text)
                self._waiting.append(ref(compilation))
            elif text in self._kept:
                self._kept.move_to_end(text)
        self._go_on()
        return compilation

    def give_up_late(self) -> None:
        """Refuse the grammar that is being compiled if it has had all its time. The next one goes on."""
        with self._lock:
            current = self._current
            if current is None or current.future.done() or self._clock() - current.began <= COMPILE_SECONDS:
                return
            # Nothing can stop what its thread does, but nobody waits for that thread any more.
            self._thread = self._current = None
            self._num_stuck += 1
            self._keep(current)
        self._go_on()
        _refuse(current, f"the grammar was not compiled within {COMPILE_SECONDS:g} s; make it simpler")

    def close(self) -> None:
        """End the thread after what it does, without waiting for it."""
        with self._lock:
            self._waiting.clear()

    def _go_on(self) -> None:
        """Have a thread for what waits, or refuse it."""
        with self._lock:
            if self._thread is not None or not self._waiting:
                return
            reason = self._start()
            if not reason:
                return
            refused = [compilation for waiting in self._waiting if (compilation := waiting()) is not None]
            self._waiting.clear()
            for compilation in refused:
                del self._known[compilation.text]  # It may be asked for again.
        for compilation in refused:
            _refuse(compilation, reason)

    def _start(self) -> str:
        """Start a thread; or why there is none."""
        if self._num_stuck >= MAX_STUCK:
            return (
                f"{self._num_stuck} grammars were not compiled within {COMPILE_SECONDS:g} s each, and no other can be "
                "before one of them has ended; try again later"
            )
        thread = threading.Thread(target=self._compile_waiting, name=_THREAD_NAME, daemon=True)
        others = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        except RuntimeError as error:
            return f"no thread could be started to compile the grammar: {error}; try again later"
        finally:
            threading.stack_size(others)
        self._thread = thread
        return ""

    def _compile_waiting(self) -> None:
        compilation = self._next(None)
        while compilation is not None:
            settle(compilation.future, partial(self._compile_one, compilation.text))
            compilation = self._next(compilation)

    def _next(self, done: Compilation | None) -> Compilation | None:
        """What the thread is to do after what it did; None: it is to end."""
        with self._lock:
            if self._thread is not threading.current_thread():
                self._num_stuck -= 1
                return None
            if done is not None:
                self._keep(done)
            while self._waiting:
                self._current = self._waiting.popleft()()
                if self._current is not None:
                    self._current.began = self._clock()
                    return self._current
            self._thread = self._current = None
            return None

    def _keep(self, compilation: Compilation) -> None:
        self._kept[compilation.text] = compilation
        if len(self._kept) > NUM_KEPT:
            self._kept.popitem(last=False)


def compile_grammar(tokenizer: LLTokenizer, text: str) -> LLMatcher:
    """Compile one grammar. It may need a deep stack.

    Raises:
        RequestError: it is wrong, or too large.
    """
    items = _SCHEMA_ITEMS if check_schemas(text) else _OTHER_ITEMS
    limits = LLParserLimits(
        initial_lexer_fuel=100_000,
        step_lexer_fuel=300_000,
        step_max_items=20_000,
        max_items_in_row=items,
        max_grammar_size=50_000,
        verbose_errors=False,
    )
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits)
    if matcher.is_error():
        raise RequestError(f"the grammar does not compile: {error_text(matcher)}")
    return matcher


def error_text(matcher: LLMatcher) -> str:
    """What llguidance says of a matcher that failed, without what is not meant for users, and not the grammar whole."""
    return f"{matcher.get_error().replace('<non-verbose/>', '').strip():.500}"


def settle(future: "Future[T]", work: Callable[[], T]) -> None:
    """Give a future what some work gives or raises, unless it was given something else meanwhile."""
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - it is for whoever waits
        with suppress(InvalidStateError):
            future.set_exception(error)
    else:
        with suppress(InvalidStateError):
            future.set_result(result)


def _refuse(compilation: Compilation, reason: str) -> None:
    with suppress(InvalidStateError):
        compilation.future.set_exception(RequestError(reason))


@atexit.register
def _wait_at_exit() -> None:
    until = time.monotonic() + _SECONDS_AT_EXIT
    for thread in threading.enumerate():
        if thread.name == _THREAD_NAME:
            thread.join(max(0.0, until - time.monotonic()))
