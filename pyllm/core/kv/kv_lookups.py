"""Looks requests up in the connector. A request is held until the connector has answered. A load that is faster than
computing is offered to the scheduler.

Knows the scheduler and the connector's half; not how blocks are loaded.
"""

import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NamedTuple

from pyllm._rust import Scheduler, SchedulerError
from pyllm.kv_transfer import HOLD_SECONDS, SchedulerConnector, TransferRequest

HOLDER = "kv_lookup"
_LONG_LOAD = 256  # tokens, from which on a load counts as long
_NEWEST_WEIGHT = 0.25  # of a measured load in the average
# While loads are slower, one hit in this many is still loaded, as loads may have become faster.
_RETRY_INTERVAL = 16

Key = tuple[int, int]  # client and request

logger = logging.getLogger(__name__)


class _Held(NamedTuple):
    request: TransferRequest
    num_computed: int  # tokens
    since: float


class LoadSpeed:
    """Decides whether a load is faster than computing, by the measured seconds per token of whole loads."""

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


class KVLookups:
    """Looks up requests. With several ranks every request waits for its load."""

    def __init__(self, scheduler: Scheduler, connector: SchedulerConnector, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._connector = connector
        self._clock = clock
        self._held: dict[Key, _Held] = {}
        self._offered: dict[Key, TransferRequest] = {}
        # For short and for long loads: most of a short load's time does not depend on its length.
        self._load_speeds = (LoadSpeed(), LoadSpeed())
        self._num_lookups = self._num_matched_tokens = self._num_skipped_hits = 0

    @property
    def num_held(self) -> int:
        """Requests that wait for the connector's answer."""
        return len(self._held)

    def add(self, key: Key) -> None:
        """Look a new request up: offer its load to the scheduler, or hold it until the connector answers."""
        num_computed, hashes = self._scheduler.known_prefix(*key)
        if not hashes:
            return
        request = TransferRequest(f"{key[0]}/{key[1]}", tuple(hashes))
        self._num_lookups += 1
        if not self._look_up(key, request, num_computed):
            self._scheduler.hold(*key, HOLDER)
            self._held[key] = _Held(request, num_computed, self._clock())

    def add_all(self, but: Collection[Key]) -> None:
        """Look up all requests except those in `but`, as new ranks have none of their blocks."""
        for report in self._scheduler.requests(self._scheduler.stats()["num_requests"]):
            key = report["client"], report["request"]
            if key not in self._held and key not in but:
                self.add(key)

    def advance(self) -> None:
        """Check the held requests; call it before each plan."""
        for key, held in list(self._held.items()):
            if self._look_up(key, held.request, held.num_computed):
                self._release(key)
            elif self._clock() - held.since >= HOLD_SECONDS:
                logger.error("a KV connector did not say in %.0f s what it has of request %d/%d", HOLD_SECONDS, *key)
                self._release(key)

    def release_all(self) -> None:
        """Let all held requests run."""
        for key in list(self._held):
            self._release(key)

    def offered(self, key: Key) -> TransferRequest:
        """The request whose load was offered to the scheduler."""
        return self._offered[key]

    def end(self, key: Key) -> None:
        """Forget a request that has ended."""
        held, offered = self._held.pop(key, None), self._offered.pop(key, None)
        request = held.request if held else offered or TransferRequest(f"{key[0]}/{key[1]}", ())
        self._connector.request_finished(request, ())

    def end_missing(self) -> None:
        """End all requests here that the scheduler no longer knows."""
        for key in [*self._offered, *self._held]:
            try:
                self._scheduler.known_prefix(*key)
            except SchedulerError:
                self.end(key)

    def measure(self, num_tokens: int, num_missing: int, seconds: float) -> None:
        """Note that a load of `num_tokens` tokens took `seconds`, and missed `num_missing` of them."""
        if num_missing:  # Their computation counts, too.
            seconds += self._scheduler.prefill_seconds(num_missing) or 0.0
        self._load_speed(num_tokens).measure(num_tokens, seconds)

    def stats(self) -> dict[str, int]:
        """Counters, and the two speeds that decide on a load: tokens per second, 0 before the first measurement."""
        prefill = self._scheduler.prefill_seconds(1)
        return {
            "num_kv_lookups": self._num_lookups,
            "num_kv_matched_tokens": self._num_matched_tokens,
            "num_kv_skipped_hits": self._num_skipped_hits,
            "kv_load_tokens_per_second": max(speed.tokens_per_second for speed in self._load_speeds),
            "prefill_tokens_per_second": round(1 / prefill) if prefill else 0,
        }

    def _load_speed(self, num_tokens: int) -> LoadSpeed:
        return self._load_speeds[num_tokens >= _LONG_LOAD]

    def _look_up(self, key: Key, request: TransferRequest, num_computed: int) -> bool:
        """Ask the connector how many tokens of a request it has, and offer their load; False: no answer yet."""
        num_tokens, is_asynchronous = self._connector.get_num_new_matched_tokens(request, num_computed)
        if num_tokens is None:
            return False
        if num_tokens <= 0:
            return True
        self._num_matched_tokens += num_tokens
        if not self._load_speed(num_tokens).is_faster(num_tokens, self._scheduler.prefill_seconds(num_tokens)):
            self._num_skipped_hits += 1
            return True
        try:
            _, hashes = self._scheduler.known_prefix(*key)
            if tuple(hashes[:1]) != request.block_hashes[:1]:
                return True  # Its blocks have other hashes since the weights changed.
            # Only one rank reports with a step, so with several the core learns too late that a load in it has failed.
            is_asynchronous = is_asynchronous or self._connector.context.num_ranks > 1
            self._scheduler.offer_load(*key, num_computed + num_tokens, asynchronous=is_asynchronous)
        except SchedulerError:
            return True  # It has ended, or runs already.
        self._offered[key] = request
        return True

    def _release(self, key: Key) -> None:
        del self._held[key]
        with suppress(SchedulerError):  # It has ended.
            self._scheduler.release(*key, HOLDER)
