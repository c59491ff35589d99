"""Grammars of structured outputs, over `llguidance`: the allowed next tokens, and the forced ones.

All work runs on separate threads, beside the forward pass. Knows rows and token ids, but no logits and no plan.
"""

import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from pyllm.errors import ConfigError
from pyllm.workers.grammar.compile_queue import Compilation, CompileQueue, NotNowError, settle
from pyllm.workers.grammar.grammar_compiler import compile_grammar, error_text
from pyllm.workers.grammar.trial_process import GrammarTrials, TrialConfig

# Seconds of processor time for the mask after one token. llguidance's limits take effect at a tenth of this; this one
# is for work that they miss.
MASK_SECONDS = 2.0

Mask = npt.NDArray[np.int32]


class GrammarRow:
    """The state of one slot in its grammar. `Grammars` writes it on its thread; read it after `wait`."""

    __slots__ = ("__weakref__", "done", "error", "forced", "is_put_off", "mask", "matcher", "source")

    def __init__(self, mask: Mask, done: "Future[Any]", source: "Compilation | GrammarRow | None" = None) -> None:
        self.mask = mask  # int32 [1, words], bit t of word w: token 32 w + t may come next
        self.forced: list[int] = []  # forced next tokens; the mask allows only the first. Empty: there is a choice
        self.error = ""  # the reason why the request must end
        # The request already has output, and its grammar could not be compiled now: begin the grammar again later.
        self.is_put_off = False
        self.matcher: LLMatcher | None = None
        self.done = done  # completes after all work queued for the row
        # Referenced until the row is made: a grammar that no row references is not compiled.
        self.source = source

    def wait(self, seconds: float) -> bool:
        """Wait up to some seconds; return whether the row is ready."""
        try:
            self.done.result(seconds)
        except (NotYetError, CancelledError):
            return False
        return True


class Grammars:
    """Advances rows through grammars. `load` makes one for a model's tokenizer.

    Work for a row that nothing references any more is dropped, and its grammar is not compiled.

    Every method but `load` and `masks_after` returns at once; call all of them on the thread of the steps. `clock`
    returns the processor seconds of the calling thread.
    """

    def __init__(
        self,
        tokenizer: LLTokenizer,
        compile_one: Callable[[LLTokenizer, str], LLMatcher] = compile_grammar,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._tokenizer = tokenizer
        self._clock = clock
        self._ends = frozenset(tokenizer.eos_tokens)
        self._compile_queue = CompileQueue(lambda text: compile_one(tokenizer, text))
        self._masking = ThreadPoolExecutor(1, "grammar-masks")

    @classmethod
    def load(cls, tokenizer_path: str, vocab_size: int, eos_token_ids: tuple[int, ...]) -> "Grammars":
        """Read a `tokenizers` JSON; grammars are tried in another process before they are compiled in this one.

        Raises:
            ConfigError: llguidance cannot work with it.
        """
        if not eos_token_ids:
            raise ConfigError("the model names no end-of-sequence token, which ends a structured output")
        try:
            tokenizer = LLTokenizer(tokenizer_path, n_vocab=vocab_size, eos_token=list(eos_token_ids))
        except Exception as error:  # The library's errors share no class of their own.
            raise ConfigError(f"structured outputs cannot use the tokenizer {tokenizer_path}: {error}") from error
        return cls(tokenizer, GrammarTrials(TrialConfig(tokenizer_path, vocab_size, eos_token_ids)).compile)

    def begin(self, text: str, output: list[int]) -> GrammarRow:
        """A new row, advanced by some output."""
        compilation = self._compile_queue.compile(text)
        row = self._row(compilation.future, compilation)
        self._then(row, lambda row: self._enter(row, output))
        return row

    def consume(self, row: GrammarRow, tokens: list[int]) -> None:
        """Advance by some tokens."""
        self._then(row, lambda row: self._move(row, tokens))

    def fork(self, origin: GrammarRow) -> GrammarRow:
        """A copy of a row, made when all work queued for the origin before is done."""
        row = self._row(origin.done, origin)
        self._then(row, _copy)
        origin.done = row.done  # Later work for the origin comes after the copy.
        return row

    def masks_after(self, row: GrammarRow, drafts: list[int]) -> list[Mask]:
        """The masks after each draft token; fewer if the grammar forbids one of them. The row must be ready.

        Computes them at once, on the calling thread, so that a step does not wait for the masks of other rows.
        """
        assert row.matcher is not None, "the row is not ready"
        ahead = self._row(row.done)
        ahead.matcher = row.matcher.deep_copy()
        masks = []
        for token in drafts:
            self._move(ahead, [token])
            if ahead.error:
                break
            masks.append(ahead.mask.copy())
        return masks

    def close(self) -> None:
        """End the threads after their current work, without waiting."""
        self._compile_queue.close()
        self._masking.shutdown(wait=False, cancel_futures=True)

    def _row(self, done: "Future[Any]", source: Compilation | GrammarRow | None = None) -> GrammarRow:
        return GrammarRow(allocate_token_bitmask(1, self._tokenizer.vocab_size), done, source)

    def _then(self, row: GrammarRow, work: Callable[[GrammarRow], None]) -> None:
        """Queue work for a row on the mask thread, after all earlier work for the row.

        The work of one row is done in order, whatever the thread does in between. The thread itself never waits for a
        grammar. An exception in the work becomes the row's error.
        """
        before, task = row.done, partial(_do, ref(row), work)
        if before.done():
            row.done = self._masking.submit(task)
            return
        row.done = done = Future[None]()

        def go_on(_: object) -> None:
            with suppress(RuntimeError):  # closed meanwhile
                self._masking.submit(settle, done, task)

        before.add_done_callback(go_on)

    def _enter(self, row: GrammarRow, output: list[int]) -> None:
        compilation, row.source = row.source, None
        assert isinstance(compilation, Compilation)
        if failure := compilation.future.exception():
            # Unlike a new request, one that already has output must not fail because the compiler is busy.
            row.is_put_off = bool(output) and isinstance(failure, NotNowError)
            row.error = "" if row.is_put_off else str(failure)
            return
        row.matcher = compilation.future.result().deep_copy()
        self._move(row, output)

    def _move(self, row: GrammarRow, tokens: list[int]) -> None:
        """Advance by some tokens, and compute the mask and the forced tokens."""
        matcher = row.matcher
        if matcher is None or row.error:
            return
        if not self._consume(matcher, tokens):
            row.error = "its output goes on after its grammar has ended"
        elif not matcher.is_error():
            self._constrain(row, matcher)
        if matcher.is_error():
            row.error = f"its grammar failed: {error_text(matcher)}"

    def _consume(self, matcher: LLMatcher, tokens: list[int]) -> bool:
        """Advance token by token, so that other threads run in between; False if there are tokens after the end."""
        for token in tokens:
            if matcher.is_error():
                break
            if not matcher.is_stopped():
                matcher.consume_token(token)
            elif token not in self._ends:
                return False
        return True

    def _constrain(self, row: GrammarRow, matcher: LLMatcher) -> None:
        began = self._clock()
        self._find_next(row, matcher)
        seconds = self._clock() - began
        if seconds > MASK_SECONDS and not matcher.is_error():
            row.error = f"its grammar took {seconds:.1f} s for one token; {MASK_SECONDS:g} s are most: make it simpler"

    def _find_next(self, row: GrammarRow, matcher: LLMatcher) -> None:
        # The mask first: it releases the GIL, and makes the search for forced tokens cheap.
        fill_next_token_bitmask(matcher, row.mask)
        if matcher.is_error():
            return
        words = row.mask.view(np.uint32)[0]
        row.forced = [] if matcher.is_stopped() else matcher.compute_ff_tokens()
        if row.forced:
            # Always use this tokenisation of forced text, even if the mask allows another one.
            token = row.forced[0]
            words[:] = 0
            words[token // 32] = 1 << token % 32
        elif np.bitwise_count(words).sum() == 1:
            word = int(words.argmax())
            row.forced = [32 * word + int(words[word]).bit_length() - 1]


def _copy(row: GrammarRow) -> None:
    origin, row.source = row.source, None
    assert isinstance(origin, GrammarRow)
    row.error, row.is_put_off = origin.error, origin.is_put_off
    if origin.matcher is not None:
        row.matcher, row.forced = origin.matcher.deep_copy(), origin.forced
        row.mask[:] = origin.mask


def _do(reference: ReferenceType[GrammarRow], work: Callable[[GrammarRow], None]) -> None:
    """Do a row's work, unless nothing references the row any more."""
    row = reference()
    if row is None:
        return
    try:
        work(row)
    except BaseException as error:  # noqa: BLE001 - whatever the library raises, it ends this request alone
        row.error = row.error or f"its grammar failed: {error}"
