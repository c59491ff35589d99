"""The journal of one request: its prompt, parameters and tokens so far, so that another core can continue it.

Knows neither sockets nor text.
"""

from array import array

import msgspec

from pyllm.wire.messages import CLEARING_TOKENS, LOSSES_TO_RUN_ALONE, FinishCode, IsolationStage, Output, Submit


class Journal:
    """The request as it was first sent, and every token that came back, per sample.

    If log-probabilities of the prompt are wanted, it also counts the prompt tokens whose log-probabilities have come. A
    sample is closed once it has finished or was aborted; a resubmission asks only for the others. `arrival` is by the
    client's clock, in seconds.
    """

    __slots__ = (
        "_arrival",
        "_closed",
        "_first",
        "_is_alone",
        "_is_told",
        "_num_known",
        "_num_untold",
        "_outputs",
        "num_losses",
        "num_losses_alone",
    )

    def __init__(self, first: Submit, arrival: float) -> None:
        self._first = first
        self._arrival = arrival
        self._outputs = [array("i") for _ in range(first.n)]
        self._closed = [False] * first.n
        self._is_told = False  # whether log-probabilities of the prompt have come
        # Prompt tokens whose log-probabilities are still to come; the first token never has one.
        self._num_untold = len(first.prompt) // 4 - 1 if first.sampling.prompt_logprobs is not None else 0
        # Cores lost in a row with hardly any new tokens between, and how many of them while this request ran alone.
        self.num_losses = 0
        self.num_losses_alone = 0
        self._is_alone = False
        self._num_known = -self._num_untold  # tokens at the last loss of a core

    @property
    def first(self) -> Submit:
        """The request as first sent, without epoch and id."""
        return self._first

    @property
    def num_samples(self) -> int:
        """The number of samples of the request."""
        return len(self._outputs)

    def accept(self, sample: int, offset: int, tokens: list[int]) -> list[int] | None:
        """Append tokens that begin at `offset` of a sample's output.

        Returns those not seen before, or None if tokens are missing before `offset`: then nothing is appended.
        """
        if self._num_untold and tokens and sample == 0:
            return None  # The first sample's output follows the prompt's log-probabilities.
        output = self._outputs[sample]
        seen = len(output) - offset
        if seen:
            if seen < 0:
                return None
            tokens = tokens[seen:]
        output.fromlist(tokens)
        return tokens

    def accept_prompt(self, num_left: int, num_tokens: int) -> int | None:
        """Count `num_tokens` prompt tokens with log-probabilities; `num_left` is from the first to the prompt's end.

        Returns how many of them, at their end, are new; None if log-probabilities before them are missing.
        """
        if num_left < self._num_untold:
            return None
        num_fresh = max(0, num_tokens - (num_left - self._num_untold))
        self._num_untold -= num_fresh
        self._is_told = True
        return num_fresh

    @property
    def is_begun(self) -> bool:
        """Whether the client has output that the rest of the request must continue."""
        return self._is_told or any(self._outputs)

    def is_expired(self, now: float) -> bool:
        """Whether the request's timeout has passed."""
        return self._first.timeout is not None and now - self._arrival >= self._first.timeout

    def close(self, sample: int) -> None:
        """Note that a sample is over; -1 closes all, as does closing one beam of a beam search."""
        if sample < 0 or self._first.beam_width:
            self._closed = [True] * len(self._closed)
        else:
            self._closed[sample] = True

    def ending(self, sample: int) -> FinishCode:
        """The finish code of a sample without a last delta, given the tokens it has; NONE if it continues."""
        first, output = self._first, self._outputs[sample]
        if self._closed[sample]:
            return FinishCode.ABORT
        if output and len(output) >= first.min_tokens and output[-1] in array("i", first.stop_token_ids):
            return FinishCode.STOP
        return FinishCode.LENGTH if output and len(output) >= first.max_tokens else FinishCode.NONE

    def isolate(self, stage: IsolationStage) -> None:
        """Note that the core runs this request alone, keeps it aside, or no longer isolates it.

        A request that ran alone without a crash does not crash a core at once; it may still do so later.
        """
        self._is_alone = stage == "alone"
        if stage == "over":
            self.num_losses_alone = 0

    def lose_core(self) -> None:
        """Count the loss of a core; the count starts again if the request got enough tokens since the last loss."""
        self._num_known = self._clear()
        self.num_losses += 1
        self.num_losses_alone += self._is_alone
        self._is_alone = False

    @property
    def is_suspect(self) -> bool:
        """Whether a core was lost with it, and hardly any tokens have come since."""
        return self.num_losses > 0 and self._num_fresh() < CLEARING_TOKENS * self._closed.count(False)

    def submission(self, epoch: int, request: int, now: float, *, is_to_run_alone: bool = False) -> Submit:
        """The message that starts the request in this epoch, or continues it after the tokens already received.

        `timeout` is the time left, 0 if none is. With `is_to_run_alone` the message reports at least
        `LOSSES_TO_RUN_ALONE` losses.
        """
        resumed = any(self._closed) or any(self._outputs)
        outputs = tuple(
            Output(output.tobytes(), closed) for output, closed in zip(self._outputs, self._closed, strict=True)
        )
        self._clear()
        age = max(0.0, now - self._arrival)
        timeout = self._first.timeout
        sampling = self._first.sampling
        if not self._num_untold and sampling.prompt_logprobs is not None:
            sampling = msgspec.structs.replace(sampling, prompt_logprobs=None)
        return msgspec.structs.replace(
            self._first,
            epoch=epoch,
            request=request,
            outputs=outputs if resumed else (),
            sampling=sampling,
            age=age,
            timeout=None if timeout is None else max(0.0, timeout - age),
            num_losses=max(self.num_losses, LOSSES_TO_RUN_ALONE) if is_to_run_alone else self.num_losses,
        )

    def _num_fresh(self) -> int:
        """The number of tokens since the last loss of a core."""
        return sum(map(len, self._outputs)) - self._num_untold - self._num_known

    def _clear(self) -> int:
        """Forget lost cores if enough tokens have come since the last loss; returns the number of known tokens."""
        num_fresh = self._num_fresh()
        if num_fresh >= CLEARING_TOKENS * self._closed.count(False):
            self.num_losses = self.num_losses_alone = 0
        return self._num_known + num_fresh
