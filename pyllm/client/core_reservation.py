"""A client's record of a core's reservation for suspects: requests that were lost with another core.

Times are by the client's clock. Knows neither requests nor other cores, and sends nothing.
"""


class CoreReservation:
    """The remaining seconds come with each load report of the core; `Reserve` has the bound.

    Suspects may go to the core from when it has no other requests until the reservation ends: other requests there
    later are suspects that were cleared.
    """

    def __init__(self) -> None:
        self.rests_until = 0.0  # the core is not reserved again before this time
        self._since = 0.0
        self._until = 0.0
        self._was_free = False

    def is_active(self, now: float) -> bool:
        """Whether only suspects go to the core, if other cores can take the rest."""
        return now < self._until

    def takes_suspects(self, now: float) -> bool:
        """Whether suspects may be sent to the core."""
        return self._was_free and self.is_active(now)

    def take(self, seconds: float, now: float, *, is_free: bool) -> bool:
        """Note that the core reported to be reserved for `seconds`; returns whether a reservation begins.

        `is_free`: the core has only suspects.
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
