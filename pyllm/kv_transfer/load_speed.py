"""Decides whether loading tokens is faster than computing them, by measured times. Knows no store and no request."""

# Weight of the newest measurement, and how many hits that seem not to be worth a load are computed before one is loaded
# all the same: loads may have become faster.
_NEWEST, _SKIPPED_HITS = 0.25, 16


class LoadSpeed:
    """Measured seconds from asking for a token until it is there."""

    def __init__(self) -> None:
        self._seconds: float | None = None  # a token
        self._num_skipped = 0

    @property
    def tokens_per_second(self) -> int:
        """0 before any load was measured."""
        return round(1 / self._seconds) if self._seconds else 0

    def measure(self, num_tokens: int, seconds: float) -> None:
        """These tokens took so many seconds to be there, loaded or computed."""
        newest = seconds / num_tokens
        self._seconds = newest if self._seconds is None else self._seconds + _NEWEST * (newest - self._seconds)

    def is_faster(self, num_tokens: int, prefill_seconds: float | None) -> bool:
        """Whether to load so many tokens rather than to compute them in so many seconds."""
        if self._seconds is None or prefill_seconds is None or self._seconds * num_tokens < prefill_seconds:
            self._num_skipped = 0
            return True
        self._num_skipped = (self._num_skipped + 1) % _SKIPPED_HITS
        return self._num_skipped == 0
