"""What a client knows of a core's reservation for requests that were lost with another core, by the client's clock.

Knows neither requests nor other cores, and asks for nothing.
"""


class CoreReservation:
    """The core says in each load report how long it lasts; its own bound is in `Reserve`.

    Suspects may go to the core from the time on when it had no other requests, whatever it has after that: those that
    were cleared there, too.
    """

    def __init__(self) -> None:
        self.rests_until = 0.0  # before that the core will not be reserved again
        self._since = 0.0
        self._until = 0.0
        self._was_free = False

    def is_active(self, now: float) -> bool:
        """Whether only suspects are sent to the core, where others can take the rest."""
        return now < self._until

    def takes_suspects(self, now: float) -> bool:
        """Whether suspects may be sent to the core."""
        return self._was_free and self.is_active(now)

    def take(self, seconds: float, now: float, *, is_free: bool) -> bool:
        """The core has said that it is reserved for so long; gives whether that is new.

        `is_free`: it has nothing but suspects.
        """
        if not seconds:
            self._until = min(self._until, now)
            return False
        begins = not self.is_active(now)
        if begins:
            self._since = now
        self._until = now + seconds
        self.rests_until = self._until + (self._until - self._since)
        self._was_free = is_free or (self._was_free and not begins)
        return begins
