"""The ticket of an admitted request, which is returned exactly once. Knows neither HTTP nor generations."""

import time
from collections.abc import Callable

from pyllm.frontend.shared.messages import Granted, Refused
from pyllm.frontend.shared.remote_state import Shared


class Ticket:
    """Open until `ended`, which counts once, however often it is called.

    Whoever goes on with the request after its HTTP exchange says so by `hold`, and then has to call `ended`; until
    then the exchange's end gives it back by `release`. `arrival` is that of the request, `first_token` when that
    came, by the monotonic clock.
    """

    __slots__ = ("_clock", "_counts_tokens", "_is_held", "_is_open", "_number", "_shared", "arrival", "first_token")

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
        self._is_held = False
        self._is_open = True

    @property
    def age(self) -> float:
        """Seconds since the request came."""
        return self._clock() - self.arrival

    async def charge(self, num_prompt_tokens: int) -> Granted | Refused | None:
        """Count a prompt; None where nobody counts. Where it is refused, the ticket is closed."""
        if not self._counts_tokens:
            return None
        answer = await self._shared.charge(self._number, num_prompt_tokens)
        if isinstance(answer, Refused):
            self._is_open = False
        return answer

    def hold(self) -> None:
        """Keep it beyond the exchange."""
        self._is_held = True

    def started(self) -> None:
        """Its first token has come."""
        if self._is_open and self.first_token is None:
            self.first_token = self._clock()
            self._shared.started(self._number)

    def ended(self, num_output_tokens: int) -> bool:
        """Give it back; its request was given so many tokens. False: that was done before."""
        if not self._is_open:
            return False
        self._is_open = False
        self._shared.ended(self._number, num_output_tokens)
        return True

    def release(self) -> None:
        """Give it back unless somebody holds it."""
        if not self._is_held:
            self.ended(0)
