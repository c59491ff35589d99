"""Figures of tiers: reported as differences, at most every few seconds, and added up."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from pyllm.kv_transfer.stores.store import StoreStats
from pyllm.kv_transfer.tier_figures import REPORT_SECONDS, TierReporter, TierTotals, summed, tiers_of
from pyllm.kv_transfer.tiered_store import TieredStore
from tests.kv_transfer.dict_store import DictStore


class Told(DictStore):
    """Has the figures that a test gives it."""

    def __init__(self, **figures: float) -> None:
        super().__init__("told")
        self.figures = figures

    def stats(self) -> list[StoreStats]:
        return [StoreStats(**{"tier": "disk", **self.figures})]  # type: ignore[arg-type]


class Looking:
    """A reporter, and the clock that it has."""

    def __init__(self, store: DictStore | TieredStore) -> None:
        self.now = 0.0
        self.threads = ThreadPoolExecutor(1)
        self.reporter = TierReporter(store, lambda: self.now, self.threads)

    def look(self, seconds: float = REPORT_SECONDS) -> dict[str, dict[str, float]]:
        """What a look some time later finds, if there is one."""
        self.now += seconds
        assert self.reporter.take() == {}, "a look is not waited for"
        self.threads.submit(bool).result()
        return self.reporter.take()


def test_a_report_has_what_counters_have_gained_and_sizes_as_they_are() -> None:
    store = Told(num_saved=5, used_bytes=100, load_seconds=0.5)
    looking = Looking(store)
    assert looking.look() == {"disk": {"num_saved": 5, "used_bytes": 100, "load_seconds": 0.5}}
    assert looking.look() == {}
    store.figures = {"num_saved": 7, "used_bytes": 40, "load_seconds": 0.5}
    assert looking.look() == {"disk": {"num_saved": 2, "used_bytes": 40}}
    store.figures = {"num_saved": 7, "used_bytes": 0, "load_seconds": 0.5}
    assert looking.look() == {"disk": {"used_bytes": 0}}
    looking.threads.shutdown()


def test_a_store_is_looked_at_once_in_a_while() -> None:
    store = Told(num_saved=1)
    looking = Looking(store)
    assert looking.look() == {"disk": {"num_saved": 1}}
    store.figures = {"num_saved": 2}
    assert looking.look(REPORT_SECONDS / 4) == {}
    assert looking.look(REPORT_SECONDS / 2) == {}
    assert looking.look(REPORT_SECONDS / 4) == {"disk": {"num_saved": 1}}
    looking.threads.shutdown()


def test_an_infinite_figure_counts_as_none_and_what_is_no_number_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert Looking(Told(capacity_bytes=float("inf"), num_saved=2)).look() == {"disk": {"num_saved": 2}}
    assert Looking(Told(capacity_bytes=None)).look() == {}  # type: ignore[arg-type]  # That is what is wrong.
    assert "the figures of the store of KV blocks are not known: TypeError" in caplog.text
    totals = TierTotals()
    totals.add({"disk": {"used_bytes": float("nan"), "num_saved": 1}})
    assert (totals.figures()["kv_store_disk_used_bytes"], totals.figures()["kv_store_disk_num_saved"]) == (0, 1)


def test_each_tier_is_told_even_before_it_has_counted(caplog: pytest.LogCaptureFixture) -> None:
    fast, slow = Told(), Told(tier="redis", num_pauses=1)  # type: ignore[arg-type]
    looking = Looking(TieredStore([fast, slow]))
    assert looking.look() == {"disk": {}, "redis": {"num_pauses": 1}}
    looking.threads.shutdown()
    broken = Looking(Told(of_no_such_name=1))
    assert broken.look() == {}
    assert "the figures of the store of KV blocks are not known: TypeError" in caplog.text
    broken.threads.shutdown()


def test_reports_of_all_ranks_and_processes_add_up() -> None:
    totals = TierTotals()
    assert totals.figures() == {}
    totals.add({"disk": {"num_saved": 5, "used_bytes": 100, "load_seconds": 0.0004}})
    totals.add({"disk": {"num_saved": 2, "used_bytes": 40, "load_seconds": 0.0004}, "redis": {}})
    figures = totals.figures()
    assert figures["kv_store_disk_num_saved"] == 7
    assert figures["kv_store_disk_used_bytes"] == 40
    assert figures["kv_store_disk_load_milliseconds"] == 1
    assert figures["kv_store_redis_num_saved"] == 0
    assert len(figures) == 2 * (len(StoreStats.__struct_fields__) - 1)
    tiers = tiers_of({"num_kv_lookups": 4, **figures})
    assert tiers.keys() == {"disk", "redis"}
    disk = {name: value for name, value in tiers["disk"].items() if value}
    assert disk == {"num_saved": 7, "used_bytes": 40, "load_seconds": 0.001}
    assert {"tier", *tiers["redis"]} == set(StoreStats.__struct_fields__)
    assert tiers_of({"num_kv_lookups": 4}) == {}


def test_of_several_cores_on_one_folder_counters_add_up_and_sizes_do_not() -> None:
    cores = []
    for num_saved in (3, 4):
        totals = TierTotals()
        totals.add({"disk": {"num_saved": num_saved, "num_blocks": 7, "capacity_bytes": 100}})
        cores.append(totals.figures() | {"num_blocks": 32})
    together = summed(cores)
    assert (together["num_blocks"], summed([])) == (64, {})
    tier = tiers_of(together)["disk"]
    assert (tier["num_saved"], tier["num_blocks"], tier["capacity_bytes"]) == (7, 7, 100)
