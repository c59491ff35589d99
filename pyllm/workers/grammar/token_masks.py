"""Grammars of structured outputs, over `llguidance`: which tokens may come next, and which must.

All of it runs on threads of its own, beside the forward pass. Knows rows and token ids, but no logits and no plan.
"""

import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
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
from pyllm.workers.grammar.compile_queue import Compilation, CompileQueue, NotNowError
from pyllm.workers.grammar.fair_thread import FairThread, Share
from pyllm.workers.grammar.grammar_compiler import compile_grammar, error_text
from pyllm.workers.grammar.trial_process import GrammarTrials, TrialConfig

# Seconds that a step waits for masks: one deadline for all its rows, however many. Rows whose mask comes later sit the
# step out.
PATIENCE = 0.01
# Seconds of processor time that the mask after one token may take. What llguidance limits ends ten times as soon; this
# is for what nobody has thought of.
MASK_SECONDS = 2.0

Mask = npt.NDArray[np.int32]


class GrammarRow:
    """One slot's place in its grammar. `Grammars` writes it on its thread; what it says is there after `wait`."""

    __slots__ = ("__weakref__", "done", "error", "forced", "is_put_off", "mask", "matcher", "share", "source")

    def __init__(
        self, mask: Mask, share: Share, done: "Future[Any]", source: "Compilation | GrammarRow | None" = None
    ) -> None:
        self.mask = mask  # int32 [1, words], bit t of word w: token 32 w + t may come next
        self.forced: list[int] = []  # what must come next; the mask allows its first alone. Empty: there is a choice
        self.error = ""  # why the request cannot go on
        # Its output has begun elsewhere, and its grammar cannot be had just now: it is to be begun again.
        self.is_put_off = False
        self.matcher: LLMatcher | None = None
        self.share = share  # of the thread of the masks: one for a row and all its forks
        self.done = done  # all that was asked of it
        # What it is made of, held until then: a grammar that no row holds is not compiled.
        self.source = source

    def wait(self, seconds: float) -> bool:
        """Whether the row is ready, within some seconds."""
        try:
            self.done.result(seconds)
        except (NotYetError, CancelledError):
            return False
        return True


class Grammars:
    """Moves rows through grammars. `load` makes one for a model's tokenizer.

    Who holds a row wants it: what was asked of one that nobody holds is not done, nor its grammar compiled.

    Every method but `load` and `masks_after` returns at once, and all belong to the thread of the steps. `clock` gives
    the seconds that the calling thread has worked.
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
        self._masking = FairThread("grammar-masks", clock)

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
        """A row at the place that some output leads to from the beginning."""
        compilation = self._compile_queue.compile(text)
        row = self._row(Share(), compilation.future, compilation)
        self._then(row, lambda row: self._enter(row, output))
        return row

    def consume(self, row: GrammarRow, tokens: list[int]) -> None:
        """Go on by some tokens."""
        self._then(row, lambda row: self._move(row, tokens))

    def fork(self, origin: GrammarRow) -> GrammarRow:
        """Another row, where the origin is when all that was asked of it before is done."""
        row = self._row(origin.share, origin.done, origin)
        self._then(row, _copy)
        origin.done = row.done  # What is asked of the origin from now on comes after the copy.
        return row

    def masks_after(self, row: GrammarRow, drafts: list[int]) -> list[Mask]:
        """The masks after each of some tokens that may come next; fewer where one of them may not. This waits."""
        return self._masking.submit(row.share, lambda: self._look_ahead(row, drafts)).result()

    def close(self) -> None:
        """End the threads, without waiting for what they do."""
        self._compile_queue.close()
        self._masking.close()

    def _row(self, share: Share, done: "Future[Any]", source: Compilation | GrammarRow | None = None) -> GrammarRow:
        return GrammarRow(allocate_token_bitmask(1, self._tokenizer.vocab_size), share, done, source)

    def _then(self, row: GrammarRow, work: Callable[[GrammarRow], None]) -> None:
        """Do something on the thread of the masks when all that was asked of a row before is done.

        So what is asked of a row is done in the order that it was asked for, whatever the thread does between. That
        thread itself never waits for a grammar. What the work raises becomes the row's error.
        """
        before, share, task = row.done, row.share, partial(_do, ref(row), work)
        if before.done():
            row.done = self._masking.submit(share, task)
            return
        row.done = done = Future[None]()

        def go_on(_: object) -> None:
            with suppress(RuntimeError):  # It was closed meanwhile.
                self._masking.submit(share, task, done)

        before.add_done_callback(go_on)

    def _enter(self, row: GrammarRow, output: list[int]) -> None:
        compilation, row.source = row.source, None
        assert isinstance(compilation, Compilation)
        if failure := compilation.future.exception():
            # Who has had some of its output is not to end for want of time, as one that comes may.
            row.is_put_off = bool(output) and isinstance(failure, NotNowError)
            row.error = "" if row.is_put_off else str(failure)
            return
        row.matcher = compilation.future.result().deep_copy()
        self._move(row, output)

    def _move(self, row: GrammarRow, tokens: list[int]) -> None:
        """Go on by some tokens, and find out what may follow."""
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
        """Go on, token by token, as other threads cannot run meanwhile; False: there are tokens after the end."""
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
        # The mask first: it lets other threads run, and leaves little to do for what is forced.
        fill_next_token_bitmask(matcher, row.mask)
        if matcher.is_error():
            return
        words = row.mask.view(np.uint32)[0]
        row.forced = [] if matcher.is_stopped() else matcher.compute_ff_tokens()
        if row.forced:
            # Forced text is always spelt in this one way, whether or not the mask would leave another.
            token = row.forced[0]
            words[:] = 0
            words[token // 32] = 1 << token % 32
        elif np.bitwise_count(words).sum() == 1:
            word = int(words.argmax())
            row.forced = [32 * word + int(words[word]).bit_length() - 1]

    def _look_ahead(self, row: GrammarRow, drafts: list[int]) -> list[Mask]:
        assert row.matcher is not None, "the row is not ready"
        ahead = self._row(row.share, row.done)
        ahead.matcher = row.matcher.deep_copy()
        masks = []
        for token in drafts:
            self._move(ahead, [token])
            if ahead.error:
                break
            masks.append(ahead.mask.copy())
        return masks


def _copy(row: GrammarRow) -> None:
    origin, row.source = row.source, None
    assert isinstance(origin, GrammarRow)
    row.error, row.is_put_off = origin.error, origin.is_put_off
    if origin.matcher is not None:
        row.matcher, row.forced = origin.matcher.deep_copy(), origin.forced
        row.mask[:] = origin.mask


def _do(reference: ReferenceType[GrammarRow], work: Callable[[GrammarRow], None]) -> None:
    """Do a row's work, unless nobody holds the row any more."""
    row = reference()
    if row is None:
        return
    try:
        work(row)
    except BaseException as error:  # noqa: BLE001 - whatever the library raises, it ends this request alone
        row.error = row.error or f"its grammar failed: {error}"
