"""The reader of one request's tokens: a buffer into which deltas merge. Knows no core."""

import asyncio

import msgspec

from pyllm.client.columns import StartTimes
from pyllm.client.logprobs import LogprobEntries, extended
from pyllm.errors import PyllmError
from pyllm.wire.messages import FinishCode


class TokenDelta(msgspec.Struct, gc=False):
    """New tokens of one sample. `cached_tokens` counts the prompt's tokens that the prefix cache had.

    `logprobs` has log-probabilities of each token, `prompt_logprobs` those of the prompt's next tokens, from its second
    on, which may come without any output. `start_times` comes with the first output, and again if another core starts
    the request anew. All three are None if absent.
    """

    sample: int
    tokens: list[int]
    finish: FinishCode
    cached_tokens: int
    logprobs: list[LogprobEntries] | None = None
    prompt_logprobs: list[LogprobEntries] | None = None
    start_times: StartTimes | None = None


class TokenReader:
    """A sink with one reader. Unread deltas merge per sample, so it holds at most the request's output."""

    def __init__(self, num_samples: int) -> None:
        self._unfinished = num_samples
        self._pending: dict[int, TokenDelta] = {}
        self._error: PyllmError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._idle_ticks = 0

    @property
    def finished(self) -> bool:
        """Whether the last delta or an error has arrived."""
        return self._unfinished == 0 or self._error is not None

    def delta(self, index: int, delta: TokenDelta) -> None:
        """Take new tokens in."""
        pending = self._pending.setdefault(index, delta)
        if pending is not delta:
            pending.tokens.extend(delta.tokens)
            pending.finish = delta.finish
            pending.cached_tokens = max(pending.cached_tokens, delta.cached_tokens)
            pending.logprobs = extended(pending.logprobs, delta.logprobs)
            pending.start_times = delta.start_times or pending.start_times
        if delta.finish:
            self._unfinished -= 1
        self._wake()

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        """Take in log-probabilities of the prompt."""
        pending = self._pending.setdefault(index, TokenDelta(index, [], FinishCode.NONE, 0))
        pending.prompt_logprobs = extended(pending.prompt_logprobs, logprobs)
        self._wake()

    def error(self, error: PyllmError) -> None:
        """End the stream; the reader gets the pending deltas, then the error."""
        self._error = error
        self._wake()

    async def read(self) -> TokenDelta | None:
        """The next delta, in the order of the samples' first unread tokens; None after the last.

        Raises:
            PyllmError: the request failed.
        """
        while not self._pending:
            if self._error is not None:
                raise self._error
            if self._unfinished == 0:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._idle_ticks = 0
        return self._pending.pop(next(iter(self._pending)))

    def tick(self) -> int:
        """Count a tick, and return the number of ticks for which output has waited for the reader."""
        self._idle_ticks = self._idle_ticks + 1 if self._pending else 0
        return self._idle_ticks

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
