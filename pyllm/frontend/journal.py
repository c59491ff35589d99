"""What one request has been given so far, so that it can be sent again. Knows neither sockets nor text."""

from array import array

import msgspec

from pyllm.messages import Output, Submit


class Journal:
    """The request as it was first sent, and every token that came back, per sample.

    A sample is closed once it has finished, or once nobody wants more of it; a resubmission asks for the others only.
    `arrival` is the client's clock, in seconds.
    """

    __slots__ = ("_arrival", "_closed", "_first", "_outputs")

    def __init__(self, first: Submit, arrival: float) -> None:
        self._first = first
        self._arrival = arrival
        self._outputs = [array("i") for _ in range(first.n)]
        self._closed = [False] * first.n

    @property
    def num_samples(self) -> int:
        """How many samples the request has."""
        return len(self._outputs)

    def accept(self, sample: int, offset: int, tokens: list[int]) -> list[int] | None:
        """Enter tokens that begin at `offset` of a sample's output.

        Gives those not seen before, or None where tokens are missing before `offset`: then nothing is entered.
        """
        output = self._outputs[sample]
        seen = len(output) - offset
        if seen:
            if seen < 0:
                return None
            tokens = tokens[seen:]
        output.fromlist(tokens)
        return tokens

    def close(self, sample: int) -> None:
        """Note that nothing more is wanted of this sample."""
        self._closed[sample] = True

    def is_closed(self, sample: int) -> bool:
        """Whether nothing more is wanted of this sample."""
        return self._closed[sample]

    def submission(self, epoch: int, request: int, now: float) -> Submit:
        """The message that starts the request in this epoch, or that continues it after what was already received.

        Its time has gone on meanwhile: `timeout` is what is left of it, 0 if nothing is.
        """
        resumed = any(self._closed) or any(self._outputs)
        outputs = tuple(
            Output(output.tobytes(), closed) for output, closed in zip(self._outputs, self._closed, strict=True)
        )
        age = max(0.0, now - self._arrival)
        timeout = self._first.timeout
        return msgspec.structs.replace(
            self._first,
            epoch=epoch,
            request=request,
            outputs=outputs if resumed else (),
            age=age,
            timeout=None if timeout is None else max(0.0, timeout - age),
        )
