"""The metrics of KV stores, by tier, from a core's figures. Knows no store."""

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric

from pyllm.frontend.observability.metric_families import OURS, Families
from pyllm.kv_transfer import tiers_of

# Name, text, and the field of `StoreStats`.
_GAUGES = (
    ("kv_store_capacity_bytes", "Most bytes that the store takes.", "capacity_bytes"),
    ("kv_store_used_bytes", "Bytes that the store takes, of all processes together.", "used_bytes"),
    ("kv_store_blocks", "KV blocks in the store, of all processes together.", "num_blocks"),
    ("kv_store_free_runs", "Gaps between live blocks, which are those that can be found.", "num_free_runs"),
    ("kv_store_longest_free_run_bytes", "Bytes of the longest such gap.", "longest_free_run_bytes"),
)
_COUNTERS = (
    ("kv_store_queries", "KV blocks that were looked up.", "num_queries"),
    ("kv_store_hits", "KV blocks that were looked up and found.", "num_hits"),
    ("kv_store_loaded_blocks", "KV blocks that were loaded.", "num_loaded"),
    ("kv_store_absent_blocks", "KV blocks that a load did not find.", "num_absent"),
    ("kv_store_corrupt_blocks", "KV blocks with a wrong checksum.", "num_corrupt"),
    ("kv_store_unreadable_blocks", "KV blocks that a load could not read.", "num_unreadable"),
    ("kv_store_saved_blocks", "KV blocks that were written.", "num_saved"),
    ("kv_store_failed_saves", "KV blocks that could not be written.", "num_failed_saves"),
    ("kv_store_evicted_blocks", "KV blocks that made room for others.", "num_evicted"),
    ("kv_store_compactions", "Files with few blocks left that were compacted.", "num_compactions"),
    ("kv_store_pauses", "Times the store was not asked for a while, because it was slow or unreachable.", "num_pauses"),
    ("kv_store_loaded_bytes", "Bytes that were loaded.", "loaded_bytes"),
    ("kv_store_saved_bytes", "Bytes that were written.", "saved_bytes"),
    ("kv_store_load_seconds", "Time that threads spent on loads.", "load_seconds"),
    ("kv_store_save_seconds", "Time that threads spent on saves.", "save_seconds"),
)


def families_of_tiers(families: Families, stats: Mapping[str, int]) -> Iterator[Metric]:
    """Every metric of the stores of one core, by `tier`; none where it has no store."""
    tiers = tiers_of(stats)
    if not tiers:
        return
    for name, text, figure in _COUNTERS:
        values = {tier: figures[figure] for tier, figures in tiers.items()}
        yield families.counters(OURS, name, text, "tier", values)
    bounded = {tier: figures for tier, figures in tiers.items() if figures["capacity_bytes"]}
    if not bounded:  # A store without a bound of its own does not know what is in it.
        return
    for name, text, figure in _GAUGES:
        values = {tier: figures[figure] for tier, figures in bounded.items()}
        yield families.gauges(OURS, name, text, "tier", values)
    live = {
        tier: figures["live_bytes"] / figures["used_bytes"] if figures["used_bytes"] else 0.0
        for tier, figures in bounded.items()
    }
    text = "Share of used bytes in live blocks, 0 to 1."
    yield families.gauges(OURS, "kv_store_live_perc", text, "tier", live)
