"""The ticket of an admitted request, which is returned exactly once. Knows neither HTTP nor generations."""

import time
from collections.abc import Callable

from pyllm.frontend.shared.messages import Granted, Refused
from pyllm.frontend.shared.remote_state import Shared


class Ticket:
    """A ticket that is open until the first call of `ended`; later calls change nothing.

    It belongs to the request's context, which returns it at the end of the exchange, until a generation takes it.
    `arrival` is the request's, `first_token` the time of its first token, by the monotonic clock.
    """

    __slots__ = ("_clock", "_counts_tokens", "_is_open", "_number", "_shared", "arrival", "first_token")

    def __init__(
        self,
        shared: Shared,
        number: int,
        arrival: float,
        counts_tokens: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.arrival = arrival
        self.first_token: float | None = None
        self._shared = shared
        self._number = number
        self._counts_tokens = counts_tokens
        self._clock = clock
        self._is_open = True

    @property
    def age(self) -> float:
        """Seconds since the request came."""
        return self._clock() - self.arrival

    async def charge(self, num_prompt_tokens: int) -> Granted | Refused | None:
        """Count a prompt; None where no limit counts tokens. A refusal closes the ticket."""
        if not self._counts_tokens:
            return None
        answer = await self._shared.charge(self._number, num_prompt_tokens)
        if isinstance(answer, Refused):
            self._is_open = False
        return answer

    def started(self) -> None:
        """Note that the request's first token has come."""
        if self._is_open and self.first_token is None:
            self.first_token = self._clock()
            self._shared.started(self._number)

    def ended(self, num_output_tokens: int) -> bool:
        """Return the ticket of a request with so many output tokens. False: it was returned before."""
        if not self._is_open:
            return False
        self._is_open = False
        self._shared.ended(self._number, num_output_tokens)
        return True
