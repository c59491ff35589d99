"""The journal of one request: its prompt, parameters and tokens so far, so that another core can go on with it.

Knows neither sockets nor text.
"""

from array import array

import msgspec

from pyllm.wire.messages import CLEARING_TOKENS, LOSSES_TO_RUN_ALONE, FinishCode, IsolationStage, Output, Submit


class Journal:
    """The request as it was first sent, and every token that came back, per sample.

    Where log-probabilities of the prompt are wanted, it knows how far they were told, whichever sample told them. A
    sample is closed once it has finished, or once nobody wants more of it; a resubmission asks for the others only.
    `arrival` is the client's clock, in seconds.
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
        self._is_told = False  # something of the prompt
        # Of the prompt's tokens, for their log-probabilities; the first never has one.
        self._num_untold = len(first.prompt) // 4 - 1 if first.sampling.prompt_logprobs is not None else 0
        # Cores that were lost in a row with hardly anything new, and how many of them while they computed only this.
        self.num_losses = 0
        self.num_losses_alone = 0
        self._is_alone = False
        self._num_known = -self._num_untold  # tokens when a core was lost last

    @property
    def first(self) -> Submit:
        """The request as it was at first, without epoch and id."""
        return self._first

    @property
    def num_samples(self) -> int:
        """How many samples the request has."""
        return len(self._outputs)

    def accept(self, sample: int, offset: int, tokens: list[int]) -> list[int] | None:
        """Enter tokens that begin at `offset` of a sample's output.

        Gives those not seen before, or None where tokens are missing before `offset`: then nothing is entered.
        """
        if self._num_untold and tokens and sample == 0:
            return None  # The first sample's output follows what its prompt had to tell.
        output = self._outputs[sample]
        seen = len(output) - offset
        if seen:
            if seen < 0:
                return None
            tokens = tokens[seen:]
        output.fromlist(tokens)
        return tokens

    def accept_prompt(self, num_left: int, num_tokens: int) -> int | None:
        """Enter that `num_tokens` of the prompt were told of, which has `num_left` from the first of them to its end.

        Gives how many of them were not told before, the last ones, or None where some before them are missing.
        """
        if num_left < self._num_untold:
            return None
        num_fresh = max(0, num_tokens - (num_left - self._num_untold))
        self._num_untold -= num_fresh
        self._is_told = True
        return num_fresh

    @property
    def is_begun(self) -> bool:
        """Whether anything was told yet that what follows must fit to."""
        return self._is_told or any(self._outputs)

    def is_expired(self, now: float) -> bool:
        """Whether the request's time is over."""
        return self._first.timeout is not None and now - self._arrival >= self._first.timeout

    def close(self, sample: int) -> None:
        """Note that nothing more is wanted of this sample; -1: of none, as of one beam, which have no life alone."""
        if sample < 0 or self._first.beam_width:
            self._closed = [True] * len(self._closed)
        else:
            self._closed[sample] = True

    def ending(self, sample: int) -> FinishCode:
        """How a sample that has had no last delta ends with the tokens that it has; NONE if it goes on."""
        first, output = self._first, self._outputs[sample]
        if self._closed[sample]:
            return FinishCode.ABORT
        if output and len(output) >= first.min_tokens and output[-1] in array("i", first.stop_token_ids):
            return FinishCode.STOP
        return FinishCode.LENGTH if output and len(output) >= first.max_tokens else FinishCode.NONE

    def isolate(self, stage: IsolationStage) -> None:
        """Note what the core has told of this request.

        When that is over, it has shown that it does not end a core at once; a little later it may still.
        """
        self._is_alone = stage == "alone"
        if stage == "over":
            self.num_losses_alone = 0

    def lose_core(self) -> None:
        """Count the core that was just lost: as another one in a row if hardly anything new has come from it."""
        self._num_known = self._clear()
        self.num_losses += 1
        self.num_losses_alone += self._is_alone
        self._is_alone = False

    @property
    def is_suspect(self) -> bool:
        """Whether a core was lost with it, and hardly anything has come since."""
        return self.num_losses > 0 and self._num_fresh() < CLEARING_TOKENS * self._closed.count(False)

    def submission(self, epoch: int, request: int, now: float, *, is_to_run_alone: bool = False) -> Submit:
        """The message that starts the request in this epoch, or that continues it after what was already received.

        Its time has gone on meanwhile: `timeout` is what is left of it, 0 if nothing is. The core takes one that
        `is_to_run_alone` for one that two cores were lost with.
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
        """Tokens that have come since a core was lost last."""
        return sum(map(len, self._outputs)) - self._num_untold - self._num_known

    def _clear(self) -> int:
        """Forget the cores that were lost if enough has come since the last one; gives the tokens that are known."""
        num_fresh = self._num_fresh()
        if num_fresh >= CLEARING_TOKENS * self._closed.count(False):
            self.num_losses = self.num_losses_alone = 0
        return self._num_known + num_fresh
