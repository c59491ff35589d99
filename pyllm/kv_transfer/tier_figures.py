"""The figures of a store by tier: each half of the connector reports differences, and the core adds them up.

Counters thus outlive the process that counted. Knows no steps and no metrics.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor

import msgspec

from pyllm.kv_transfer.stores.store import KVStore, StoreStats

REPORT_SECONDS = 2.0  # least time between two reads of the store's figures
# Figures of `StoreStats` that are not counters: they cover all processes that have the store open.
SIZES = frozenset(
    {"capacity_bytes", "used_bytes", "live_bytes", "num_blocks", "num_free_runs", "longest_free_run_bytes"}
)

# For each tier the differences of its counters, and the sizes that have changed.
TierReport = dict[str, dict[str, float]]

_PREFIX = "kv_store_"
_SIZE_ENDS = tuple(f"_{name}" for name in sorted(SIZES))
# For each figure the suffix of its key in a core's figures, and the factor of its value there.
_KEYS = {
    name: (name.replace("seconds", "milliseconds"), 1000 if name.endswith("seconds") else 1)
    for name in StoreStats.__struct_fields__
    if name != "tier"
}

logger = logging.getLogger(__name__)


class TierReporter:
    """Reads the store's figures on `threads`, by default one of its own: nothing else waits if the store hangs."""

    def __init__(self, store: KVStore, clock: Callable[[], float], threads: Executor | None = None) -> None:
        self._store = store
        self._threads = threads or ThreadPoolExecutor(1, thread_name_prefix="kv-figures")
        self._clock = clock
        self._next_look = float("-inf")
        self._known: dict[str, dict[str, float]] = {}  # used only by `_look`
        self._lock = threading.Lock()  # guards the fields below
        self._is_looking = False
        self._report: TierReport = {}

    def take(self) -> TierReport:
        """Return the last report, once, and start the next read if it is due. Never waits."""
        with self._lock:
            report, self._report = self._report, {}
            is_due = not self._is_looking and self._clock() >= self._next_look
            self._is_looking |= is_due
        if is_due:
            self._next_look = self._clock() + REPORT_SECONDS
            self._threads.submit(self._look)
        return report

    def close(self) -> None:
        """Stop reading. It does not wait for a read under way."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _look(self) -> None:
        report: dict[str, dict[str, float]] = {}
        try:
            for stats in self._store.stats():
                figures = msgspec.structs.asdict(stats)
                tier = figures.pop("tier")
                # A store may report an infinite capacity.
                figures = {name: value if math.isfinite(value) else 0 for name, value in figures.items()}
                before = self._known.get(tier, {})
                changed = {name: value for name, value in figures.items() if value != before.get(name, 0)}
                if changed or tier not in self._known:
                    report[tier] = {
                        name: value if name in SIZES else value - before.get(name, 0) for name, value in changed.items()
                    }
                self._known[tier] = figures
        except Exception as error:  # noqa: BLE001 - a store of another package may raise any error
            logger.error("the figures of the store of KV blocks are not known: %s: %s", type(error).__name__, error)
        with self._lock:
            self._report, self._is_looking = report, False


class TierTotals:
    """The figures of all reports: sums of counters, and the last reported sizes."""

    def __init__(self) -> None:
        self._tiers: dict[str, dict[str, float]] = {}

    def add(self, report: TierReport) -> None:
        """Add the report of one half of the connector. Figures that are not finite are left out."""
        for tier, figures in report.items():
            totals = self._tiers.setdefault(tier, {})
            for name, value in figures.items():
                if math.isfinite(value):
                    totals[name] = value if name in SIZES else totals.get(name, 0) + value

    def figures(self) -> dict[str, int]:
        """`kv_store_TIER_FIELD` for each tier and each field of `StoreStats`; seconds become milliseconds."""
        return {
            f"{_PREFIX}{tier}_{key}": round(totals.get(name, 0) * factor)
            for tier, totals in self._tiers.items()
            for name, (key, factor) in _KEYS.items()
        }


def summed(cores: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The figures of several cores together. Sizes cover all processes with the store open, so they are not added."""
    sums: dict[str, int] = {}
    for figures in cores:
        for key, value in figures.items():
            is_size = key.startswith(_PREFIX) and key.endswith(_SIZE_ENDS)
            sums[key] = max(sums.get(key, 0), value) if is_size else sums.get(key, 0) + value
    return sums


def tiers_of(stats: Mapping[str, int]) -> dict[str, dict[str, float]]:
    """The inverse of `TierTotals.figures`: the figures by tier, in seconds again."""
    mark = "_num_queries"  # Each tier has this figure.
    names = [key[len(_PREFIX) : -len(mark)] for key in stats if key.startswith(_PREFIX) and key.endswith(mark)]
    return {
        tier: {name: stats.get(f"{_PREFIX}{tier}_{key}", 0) / factor for name, (key, factor) in _KEYS.items()}
        for tier in names
    }
