"""The metrics of KV stores, by tier: what a core's figures of each become. Knows no store."""

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric

from pyllm.frontend.observability.metric_families import OURS, Families

# A core's figure of a tier is `kv_tier_MEDIUM_FIGURE`. Name, text and figure.
_PREFIX = "kv_tier_"
_GAUGES = (
    ("kv_store_used_bytes", "Bytes that the store takes, of all processes together.", "used_bytes"),
    ("kv_store_blocks", "KV blocks in the store, of all processes together.", "num_blocks"),
    ("kv_store_free_runs", "Stretches of used bytes without a block that can be found.", "num_free_runs"),
    ("kv_store_longest_free_run_bytes", "Bytes of the longest such stretch.", "longest_free_run_bytes"),
)
_COUNTERS = (
    ("kv_store_queries", "KV blocks that were looked up.", "num_queries"),
    ("kv_store_hits", "KV blocks that were looked up and there.", "num_hits"),
    ("kv_store_loaded_blocks", "KV blocks that were loaded.", "num_loaded"),
    ("kv_store_absent_blocks", "KV blocks that a load did not find.", "num_absent"),
    ("kv_store_corrupt_blocks", "KV blocks that were not as they were saved.", "num_corrupt"),
    ("kv_store_failed_loads", "KV blocks that a load could not read.", "num_failed_loads"),
    ("kv_store_saved_blocks", "KV blocks that were written.", "num_saved"),
    ("kv_store_failed_saves", "KV blocks that could not be written.", "num_failed_saves"),
    ("kv_store_evicted_blocks", "KV blocks that made room for others.", "num_evicted"),
    ("kv_store_compactions", "Files with few blocks left that were compacted.", "num_compactions"),
    ("kv_store_pauses", "Times that the store was left alone, as it was slow or gone.", "num_pauses"),
    ("kv_store_loaded_bytes", "Bytes that were loaded.", "loaded_bytes"),
    ("kv_store_saved_bytes", "Bytes that were written.", "saved_bytes"),
)
_TIMES = (
    ("kv_store_load_seconds", "Time of threads in loads.", "load_milliseconds"),
    ("kv_store_save_seconds", "Time of threads in saves.", "save_milliseconds"),
)
_MARK = "_num_queries"  # Each tier has this figure.


def families_of_tiers(families: Families, stats: Mapping[str, int]) -> Iterator[Metric]:
    """Every metric of the stores of one core, by `tier`; none where it has no store."""
    tiers = [name[len(_PREFIX) : -len(_MARK)] for name in stats if name.startswith(_PREFIX) and name.endswith(_MARK)]
    if not tiers:
        return

    def of_tier(tier: str, figure: str) -> int:
        return stats.get(f"{_PREFIX}{tier}_{figure}", 0)

    for name, text, figure in _COUNTERS:
        yield families.counters(OURS, name, text, "tier", {tier: of_tier(tier, figure) for tier in tiers})
    for name, text, figure in _TIMES:
        seconds = {tier: of_tier(tier, figure) / 1000 for tier in tiers}
        yield families.counters(OURS, name, text, "tier", seconds)
    bounded = {tier: of_tier(tier, "capacity_bytes") for tier in tiers if of_tier(tier, "capacity_bytes")}
    if not bounded:  # A store without a bound of its own does not know what is in it.
        return
    yield families.gauges(OURS, "kv_store_capacity_bytes", "Most bytes that the store takes.", "tier", bounded)
    for name, text, figure in _GAUGES:
        yield families.gauges(OURS, name, text, "tier", {tier: of_tier(tier, figure) for tier in bounded})
    live = {
        tier: of_tier(tier, "live_bytes") / used if (used := of_tier(tier, "used_bytes")) else 0.0 for tier in bounded
    }
    text = "Share of used bytes that are of blocks that can be found, 0 to 1."
    yield families.gauges(OURS, "kv_store_live_perc", text, "tier", live)
