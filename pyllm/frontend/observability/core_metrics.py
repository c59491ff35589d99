"""The metrics of cores, made from each core's figures and labelled with its `engine`. Counts nothing itself."""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from prometheus_client.metrics_core import Metric

from pyllm.client.client import EngineClient
from pyllm.client.reports import AdapterReport
from pyllm.errors import PyllmError
from pyllm.frontend.observability.metric_families import OURS, VLLM, Families
from pyllm.frontend.observability.tier_metrics import families_of_tiers
from pyllm.wire.messages import ModelInfo

# Prefix, name, text, and the core's figure. `families_of_core` has the metrics that are made of several figures.
GAUGES = (
    (VLLM, "num_requests_running", "Requests that are being computed.", "num_running"),
    (VLLM, "num_requests_swapped", "Waiting requests with keys and values on the host.", "num_swapped_out"),
    (OURS, "num_requests_held", "Requests that are held back.", "num_held"),
    (OURS, "num_requests_loading", "Requests that wait for keys and values from outside.", "num_loading"),
    (OURS, "num_uncomputed_tokens", "Known tokens that are still to be computed.", "num_uncomputed_tokens"),
    (OURS, "num_pinned_blocks", "Blocks that pins keep from eviction.", "num_pinned_blocks"),
    (OURS, "num_suspects", "Requests that run alone or wait to, as they may end workers or cores.", "num_suspects"),
)
COUNTERS = (
    (VLLM, "num_preemptions", "Preemptions.", "num_preemptions"),
    (OURS, "num_requests_expired", "Requests that their deadline ended.", "num_expired"),
    (VLLM, "prefix_cache_queries", "Prompt tokens looked up.", "prefix_queries"),
    (OURS, "loaded_prefix_hits", "Prompt tokens loaded by a KV connector.", "loaded_prefix_hits"),
    (OURS, "num_failed_kv_loads", "Loads that brought less than they should.", "num_failed_loads"),
    (VLLM, "spec_decode_num_draft_tokens", "Draft tokens verified.", "num_drafts"),
    (VLLM, "spec_decode_num_accepted_tokens", "Draft tokens that became output.", "num_accepted_drafts"),
    (OURS, "num_scheduled_steps", "Steps planned.", "num_steps"),
    (OURS, "num_scheduled_tokens", "Tokens planned.", "num_computed_tokens"),
    (OURS, "recoveries", "Times that workers were lost and started anew.", "num_recoveries"),
    (OURS, "quarantine_failures", "Requests that failed because they ended workers.", "num_quarantine_failures"),
)

# Name, text, the prefix of the core's figures for each bound, and the figure of the sum.
HISTOGRAMS = (
    ("iteration_tokens_total", "Tokens of a step.", "iteration_tokens", "num_computed_tokens"),
    ("request_num_preemptions", "Preemptions of a request.", "request_preemptions", "num_ended_preemptions"),
)

# The degradation by which a core avoids running out of memory: its budget of tokens becomes lower.
CORE_DEGRADATION = "device_memory"
DEGRADATIONS_TEXT = "Times that something was given up."

Stats = Mapping[str, int]


class CoreFigures(msgspec.Struct, frozen=True):
    """A core's figures, as it counts them, and its adapters; empty where it does not answer."""

    stats: Stats
    is_ready: bool = True
    adapters: Sequence[AdapterReport] = ()


def families_of_core(families: Families, figures: CoreFigures, model: ModelInfo) -> Iterator[Metric]:
    """Every metric of one core but that of its adapters; `families` carry its labels."""
    yield families.gauge(OURS, "core_ready", "1 while the core works on requests.", figures.is_ready)
    stats = figures.stats
    if not stats:
        return
    for prefix, name, text, figure in GAUGES:
        if figure in stats:  # A core of another version may count less.
            yield families.gauge(prefix, name, text, stats[figure])
    for prefix, name, text, figure in COUNTERS:
        if figure in stats:
            yield families.counter(prefix, name, text, stats[figure])
    for name, text, prefix, total in HISTOGRAMS:
        if counts := _up_to(stats, prefix):
            buckets = [("+Inf" if math.isinf(bound) else str(bound), float(count)) for bound, count in counts]
            yield families.buckets(name, text, buckets, stats[total])
    yield from _families_of_drafts(families, stats)
    capacity, deferred = stats["num_waiting"], stats["num_held"] + stats["num_loading"]
    yield families.gauge(VLLM, "num_requests_waiting", "Requests that wait.", capacity + deferred)
    reasons = {"capacity": capacity, "deferred": deferred}
    yield families.gauges(VLLM, "num_requests_waiting_by_reason", "Requests that wait.", "reason", reasons)
    swaps = stats["num_swapped"]
    kinds = {"recompute": stats["num_preemptions"] - swaps, "swap": swaps}
    yield families.counters(OURS, "num_preemptions_by_kind", "Preemptions.", "kind", kinds)
    # Tokens not on the device are looked up on the host and by the KV connector: vLLM's external cache.
    queries, external = stats["prefix_queries"], stats["host_prefix_hits"] + stats.get("loaded_prefix_hits", 0)
    on_device = stats["prefix_hits"] - external
    yield families.counter(VLLM, "prefix_cache_hits", "Prompt tokens found on the device.", on_device)
    tiers = {"device": on_device, "host": stats["host_prefix_hits"]}
    tiers["external_unspecified"] = external - tiers["host"]
    text = "Prompt tokens found in a cache."
    yield families.counters(VLLM, "prompt_tokens_cached_by_source", text, "source", tiers)
    if "num_uncached_tokens" in stats:
        sources = {"local_compute": stats["num_uncached_tokens"], "local_cache_hit": on_device}
        sources["external_kv_transfer"] = external
        yield families.counters(VLLM, "prompt_tokens_by_source", "Prompt tokens.", "source", sources)
    text = "Prompt tokens looked up on the host or by a KV connector."
    yield families.counter(VLLM, "external_prefix_cache_queries", text, queries - on_device)
    text = "Prompt tokens found on the host or loaded by a KV connector."
    yield families.counter(VLLM, "external_prefix_cache_hits", text, external)
    num_host_blocks = stats["num_host_blocks"]
    in_use = {"device": stats["num_used_blocks"], "host": num_host_blocks - stats["num_free_host_blocks"]}
    usage, host_usage = share(in_use["device"], stats["num_blocks"]), share(in_use["host"], num_host_blocks)
    yield families.gauge(VLLM, "kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", usage)
    yield families.gauge(VLLM, "gpu_cache_usage_perc", "The older name of kv_cache_usage_perc.", usage)
    yield families.gauge(VLLM, "cpu_cache_usage_perc", "Share of the host's KV blocks in use, 0 to 1.", host_usage)
    yield from _families_of_contents(families, stats)
    yield from _families_of_fragmentation(families, stats, in_use, model.block_size)
    yield from families_of_tiers(families, stats)
    yield _family_of_sleep(families, stats)
    configuration = {
        "block_size": str(model.block_size),
        "num_gpu_blocks": str(stats["num_blocks"]),
        "num_cpu_blocks": str(num_host_blocks),
        "cache_dtype": model.kv_cache_dtype,
    }
    yield families.information(VLLM, "cache_config_info", "The KV cache's configuration.", configuration)
    if (lowered := stats.get("num_degradations")) is not None:
        yield families.counters(OURS, "degradations", DEGRADATIONS_TEXT, "reason", {CORE_DEGRADATION: lowered})


def family_of_adapters(families: Families, adapters: Sequence[AdapterReport], max_loras: int) -> Metric:
    """The adapters that requests of one core use; `max_loras` are on its device at most."""
    labels = {
        "max_lora": str(max_loras),
        "waiting_lora_adapters": ",".join(each.name for each in adapters if each.num_waiting),
        "running_lora_adapters": ",".join(each.name for each in adapters if each.num_running),
    }
    text = "The adapters of requests, at the time that is the value, in seconds since the epoch."
    return families.information(VLLM, "lora_requests_info", text, labels, time.time())


def _family_of_sleep(families: Families, stats: Mapping[str, int]) -> Metric:
    without_weights, asleep = int(stats["num_without_weights"] > 0), int(stats["num_sleeping"] > 0)
    states = {"awake": 1 - asleep, "weights_offloaded": asleep - without_weights, "discard_all": without_weights}
    return families.gauges(VLLM, "engine_sleep_state", "1 for the state of the core.", "sleep_state", states)


def _families_of_contents(families: Families, stats: Stats) -> Iterator[Metric]:
    cached = {"device": stats["num_cached_blocks"], "host": stats["num_cached_host_blocks"]}
    yield families.gauges(OURS, "num_cached_blocks", "Blocks that the prefix cache knows.", "tier", cached)
    if not stats.get("num_states"):
        return
    for name, text in (
        ("num_states", "States of sequences and of the prefix cache."),
        ("num_free_states", "States that no sequence and no pin holds, those that the prefix cache knows among them."),
        ("num_cached_states", "States that the prefix cache knows."),
    ):
        on_host = stats.get(name.replace("states", "host_states"), 0)
        yield families.gauges(OURS, name, text, "tier", {"device": stats[name], "host": on_host})
    pinned = stats.get("num_pinned_states", 0)
    yield families.gauge(OURS, "num_pinned_states", "States that pins keep, once for each pin.", pinned)


def _families_of_drafts(families: Families, stats: Stats) -> Iterator[Metric]:
    counts = [count for _, count in _up_to(stats, "accepted_drafts")]
    if not counts:  # of a core of another version
        return
    yield families.counter(VLLM, "spec_decode_num_drafts", "Rows with draft tokens that were verified.", counts[-1])
    text = "Rows whose draft token at this position became output."
    positions = {str(at): counts[-1] - counts[at] for at in range(stats["num_speculative_tokens"])}
    yield families.counters(VLLM, "spec_decode_num_accepted_tokens_per_pos", text, "position", positions)


def _up_to(stats: Stats, prefix: str) -> list[tuple[float, int]]:
    """The bounds of a core's histogram, ascending, each with how many values are not above it."""
    prefix += "_le_"
    return sorted((float(name.removeprefix(prefix)), stats[name]) for name in stats if name.startswith(prefix))


def _families_of_fragmentation(
    families: Families, stats: Stats, in_use: Mapping[str, int], block_size: int
) -> Iterator[Metric]:
    if "num_free_runs" not in stats:  # of a core of another version
        return
    empty = {"device": stats["num_empty_slots"], "host": stats["num_empty_host_slots"]}
    filled = {tier: 1 - share(empty[tier], in_use[tier] * block_size) for tier in in_use}
    text = "Share of the slots of KV blocks in use that hold tokens, 0 to 1."
    yield families.gauges(OURS, "kv_cache_slot_usage_perc", text, "tier", filled)
    runs = {"device": stats["num_free_runs"], "host": stats["num_free_host_runs"]}
    yield families.gauges(OURS, "kv_cache_free_runs", "Runs of free KV blocks that lie together.", "tier", runs)
    longest = {"device": stats["longest_free_run"], "host": stats["longest_free_host_run"]}
    yield families.gauges(OURS, "kv_cache_longest_free_run", "Blocks of the longest such run.", "tier", longest)


async def figures_of_cores(client: EngineClient) -> dict[int, CoreFigures]:
    """The current figures of each core of a client, by its index."""
    stats: dict[int, dict[str, int]] = {}
    adapters: dict[int, list[AdapterReport]] = {}
    with contextlib.suppress(PyllmError, TimeoutError):
        stats = await client.core_stats()
        if client.served_adapters is not None:
            adapters = await client.core_adapters()
    return {
        core.index: CoreFigures(stats.get(core.index, {}), core.condition.ready, adapters.get(core.index, ()))
        for core in client.cores
    }


def num_waiting(stats: Stats) -> int:
    """All waiting sequences, by the core's figures."""
    return stats["num_waiting"] + stats["num_held"] + stats["num_loading"]


def share(part: int, whole: int) -> float:
    """A part of a whole, from 0 to 1; 0 where the whole is 0."""
    return part / whole if whole else 0.0
