"""Compiles grammars: each text once, one after another on a thread of its own, within limits of work and of time.

Knows llguidance's texts and what they may cost, but no rows and no masks.
"""

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from pyllm.errors import RequestError
from pyllm.workers.grammar_sizes import check_schemas

T = TypeVar("T")

# Seconds that one grammar may take to be compiled.
COMPILE_SECONDS = 10.0
# Compiled grammars that are kept for the next request. The largest that the limits allow take some 60 MB each.
NUM_KEPT = 32
# Grammars that wait to be compiled, and threads that were given up and still compute; more of them are refused.
MAX_WAITING = 256
MAX_STUCK = 4
# llguidance counts work, not time, so whether a grammar is refused depends on itself alone. Each limit is as low as
# grammars that are used allow: 100,000 of fuel compile an enumeration of 5,000 texts, 300,000 a step let three patterns
# meet in one string, and 5,000 items in a row are 1,250 optional properties of one object. Grammars that are not JSON
# schemas may be ambiguous, where a step's work grows with the square of a row's items. On a core of 2024 a mask then
# takes 41 ms at most, but for one that ends in an error: 160 ms, where a repetition forces 100 KB at once.
_SCHEMA_ITEMS, _OTHER_ITEMS = 5_000, 500

# Grammars may be nested as deeply as their text is long, and the library recurses: with 8 MB, 1,000 references of
# which each leads to the next end the process. Memory that is not reached is not used.
_STACK_BYTES = 1 << 30


@dataclass(slots=True)
class Compilation:
    """One text on its way."""

    text: str
    future: "Future[LLMatcher]" = field(default_factory=Future)
    began: float = math.inf
    is_over: bool = False  # whether its thread has come to an end with it


class GrammarCompiler:
    """`compile_one` makes a matcher of a text, or raises, on a thread of its own. Every method returns at once."""

    def __init__(self, compile_one: Callable[[str], LLMatcher], clock: Callable[[], float] = time.monotonic) -> None:
        self._compile_one = compile_one
        self._clock = clock
        self._kept: OrderedDict[str, Compilation] = OrderedDict()
        self._waiting: deque[Compilation] = deque()
        self._current: Compilation | None = None
        self._stuck: list[Compilation] = []
        self._thread = ThreadPoolExecutor(1, "compile-grammars")

    def compile(self, text: str) -> "Future[LLMatcher]":
        """What a text becomes, or the error that it is refused with. The matcher is to be copied, not moved."""
        compilation = self._kept.get(text)
        if compilation is None:
            compilation = Compilation(text)
            self._stuck = [each for each in self._stuck if not each.is_over]
            if len(self._waiting) >= MAX_WAITING or len(self._stuck) >= MAX_STUCK:
                counts = f"{len(self._waiting)} grammars wait to be compiled, {len(self._stuck)} take too long"
                compilation.future.set_exception(RequestError(f"{counts}; try again later"))
                return compilation.future
            self._kept[text] = compilation
            self._waiting.append(compilation)
            self._submit(1)
            if len(self._kept) > NUM_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(text)
        return compilation.future

    def give_up_late(self) -> None:
        """Refuse the grammar that is being compiled if it has had all its time. The next one goes on."""
        current = self._current
        if current is None or current.future.done() or self._clock() - current.began <= COMPILE_SECONDS:
            return
        # Nothing can stop what its thread does, but nobody waits for that thread any more.
        self._stuck.append(current)
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._thread = ThreadPoolExecutor(1, "compile-grammars")
        self._submit(len(self._waiting))
        with suppress(InvalidStateError):
            current.future.set_exception(
                RequestError(f"the grammar was not compiled within {COMPILE_SECONDS:g} s; make it simpler")
            )

    def close(self) -> None:
        """End the thread after what it does, without waiting for it."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _submit(self, number: int) -> None:
        """Compile so many of those that wait."""
        others = threading.stack_size(_STACK_BYTES)
        try:
            for _ in range(number):
                self._thread.submit(self._compile_next)
        finally:
            threading.stack_size(others)

    def _compile_next(self) -> None:
        if self._waiting:
            compilation = self._waiting.popleft()
            compilation.began = self._clock()
            self._current = compilation
            settle(compilation.future, lambda: self._compile_one(compilation.text))
            compilation.is_over = True


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
