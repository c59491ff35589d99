"""Figures of KV stores become metrics with a label for the tier."""

from pyllm.frontend.observability.metrics import Metrics
from pyllm.kv_transfer import TierTotals
from tests.client.fake_core import MODEL
from tests.frontend.observability.test_metrics import STATS, exposed

DISK = {
    "num_queries": 10,
    "num_hits": 8,
    "num_loaded": 6,
    "num_absent": 1,
    "num_corrupt": 2,
    "num_unreadable": 4,
    "num_saved": 12,
    "num_failed_saves": 3,
    "num_evicted": 5,
    "num_compactions": 2,
    "loaded_bytes": 600,
    "saved_bytes": 1200,
    "load_seconds": 0.5,
    "save_seconds": 1.5,
    "capacity_bytes": 4000,
    "used_bytes": 1000,
    "live_bytes": 250,
    "num_blocks": 7,
    "num_free_runs": 9,
    "longest_free_run_bytes": 300,
}


def test_each_tier_has_its_own_label() -> None:
    totals = TierTotals()
    totals.add({"disk": DISK, "redis": {"num_queries": 2, "num_pauses": 1}})
    samples = exposed(Metrics("tiny", MODEL), STATS | totals.figures())
    found = {name.removeprefix("pyllm:kv_store_"): value for name, value in samples.items() if "kv_store_" in name}
    disk, redis = (
        {name.partition("{")[0]: value for name, value in found.items() if tier in name} for tier in ("disk", "redis")
    )
    assert disk == {
        "queries_total": 10,
        "hits_total": 8,
        "loaded_blocks_total": 6,
        "absent_blocks_total": 1,
        "unreadable_blocks_total": 4,
        "corrupt_blocks_total": 2,
        "saved_blocks_total": 12,
        "failed_saves_total": 3,
        "evicted_blocks_total": 5,
        "compactions_total": 2,
        "pauses_total": 0,
        "loaded_bytes_total": 600,
        "saved_bytes_total": 1200,
        "load_seconds_total": 0.5,
        "save_seconds_total": 1.5,
        "capacity_bytes": 4000,
        "used_bytes": 1000,
        "live_perc": 0.25,
        "blocks": 7,
        "free_runs": 9,
        "longest_free_run_bytes": 300,
    }
    assert (redis["queries_total"], redis["pauses_total"]) == (2, 1)
    assert redis.keys() == {name for name in disk if name.endswith("_total")}, "Redis bounds itself"
    assert disk.keys() | redis.keys() == {name.partition("{")[0] for name in found}


def test_without_a_store_there_are_none() -> None:
    assert not [name for name in exposed(Metrics("tiny", MODEL), STATS) if "kv_store" in name]
