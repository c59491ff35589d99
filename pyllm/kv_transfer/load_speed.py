"""Decides whether loading tokens is faster than computing them, by measured times. Knows no store and no request."""

_NEWEST_WEIGHT = 0.25
# While loads are slower, one hit in this many is still loaded, as loads may have become faster.
_RETRY_INTERVAL = 16


class LoadSpeed:
    """The measured seconds per token, from the start of a load to its end."""

    def __init__(self) -> None:
        self._seconds: float | None = None  # per token
        self._num_skipped = 0

    @property
    def tokens_per_second(self) -> int:
        """The measured speed; 0 before the first load."""
        return round(1 / self._seconds) if self._seconds else 0

    def measure(self, num_tokens: int, seconds: float) -> None:
        """Note the duration of a load of `num_tokens` tokens, including those computed after a failure."""
        newest = seconds / num_tokens
        self._seconds = newest if self._seconds is None else self._seconds + _NEWEST_WEIGHT * (newest - self._seconds)

    def is_faster(self, num_tokens: int, prefill_seconds: float | None) -> bool:
        """Whether to load `num_tokens` tokens that take `prefill_seconds` to compute (None: not yet measured)."""
        if self._seconds is None or prefill_seconds is None or self._seconds * num_tokens < prefill_seconds:
            self._num_skipped = 0
            return True
        self._num_skipped = (self._num_skipped + 1) % _RETRY_INTERVAL
        return self._num_skipped == 0
