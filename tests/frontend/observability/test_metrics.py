"""Names and bounds are vLLM's, or say that they are ours; what is counted is what happened."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from pyllm.client.columns import StartTimes
from pyllm.client.core_connection import Condition, ConnectionCounts
from pyllm.frontend.observability.core_metrics import CoreFigures
from pyllm.frontend.observability.histogram import Histogram, token_bounds
from pyllm.frontend.observability.metrics import COUNTED, Metrics
from pyllm.frontend.shared.totals import Totals
from pyllm.frontend.text.encoding_threads import EncodingCounts
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.supervision.process_samples import ProcessSample
from tests.client.fake_core import MODEL
from tests.client.fake_core import STATS as NAMES
from tests.monitoring import VLLM_SERIES

STATS = dict.fromkeys(NAMES, 0) | {
    "num_running": 3,
    "num_waiting": 4,
    "num_swapped_out": 2,
    "num_held": 1,
    "num_loading": 2,
    "num_blocks": 32,
    "num_used_blocks": 8,
    "num_cached_blocks": 6,
    "num_pinned_blocks": 5,
    "num_uncomputed_tokens": 70,
    "num_host_blocks": 40,
    "num_free_host_blocks": 30,
    "num_cached_host_blocks": 7,
    "num_empty_slots": 32,
    "num_free_runs": 3,
    "longest_free_run": 12,
    "num_empty_host_slots": 8,
    "num_free_host_runs": 1,
    "longest_free_host_run": 30,
    "num_preemptions": 5,
    "num_swapped": 2,
    "num_expired": 9,
    "prefix_queries": 100,
    "prefix_hits": 60,
    "host_prefix_hits": 15,
    "loaded_prefix_hits": 5,
    "num_computed_tokens": 1000,
    "num_steps": 50,
    "num_drafts": 12,
    "num_accepted_drafts": 8,
    "num_speculative_tokens": 3,
    "accepted_drafts_le_0": 1,
    "accepted_drafts_le_1": 3,
    "accepted_drafts_le_2": 4,
    "accepted_drafts_le_inf": 6,
    "num_ended_preemptions": 4,
    "request_preemptions_le_1": 7,
    "request_preemptions_le_5": 8,
    "request_preemptions_le_inf": 9,
    "num_uncached_tokens": 45,
    "num_failed_loads": 1,
    "num_recoveries": 3,
    "num_suspects": 4,
    "num_quarantine_failures": 1,
}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def exposed(metrics: Metrics, stats: dict[str, int]) -> dict[str, float]:
    """Every sample by its name and the labels that are its own."""
    samples = {}
    cores = {0: CoreFigures(stats)} if stats else {}
    for family in text_string_to_metric_families(metrics.expose(cores, metrics.counted(), Condition(True)).decode()):
        for sample in family.samples:
            labels = {
                name: value for name, value in sorted(sample.labels.items()) if name not in ("model_name", "engine")
            }
            assert (sample.labels["model_name"], sample.labels["engine"]) == ("tiny", "0")
            samples[sample.name + (str(labels) if labels else "")] = sample.value
    return samples


def test_the_cores_numbers_have_vllms_names() -> None:
    samples = exposed(Metrics("tiny", MODEL), STATS)
    expected = {
        "vllm:num_requests_running": 3,
        "vllm:num_requests_swapped": 2,
        "vllm:num_requests_waiting": 7,
        "vllm:num_requests_waiting_by_reason{'reason': 'capacity'}": 4,
        "vllm:num_requests_waiting_by_reason{'reason': 'deferred'}": 3,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:cpu_cache_usage_perc": 0.25,
        "vllm:num_preemptions_total": 5,
        "vllm:prefix_cache_queries_total": 100,
        "vllm:prefix_cache_hits_total": 40,
        "vllm:external_prefix_cache_queries_total": 60,
        "vllm:external_prefix_cache_hits_total": 20,
        "vllm:spec_decode_num_draft_tokens_total": 12,
        "vllm:spec_decode_num_accepted_tokens_total": 8,
        "vllm:spec_decode_num_drafts_total": 6,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{'position': '0'}": 5,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{'position': '1'}": 3,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{'position': '2'}": 2,
        "vllm:prompt_tokens_by_source_total{'source': 'local_compute'}": 45,
        "vllm:prompt_tokens_by_source_total{'source': 'local_cache_hit'}": 40,
        "vllm:prompt_tokens_by_source_total{'source': 'external_kv_transfer'}": 20,
        "vllm:prompt_tokens_cached_by_source_total{'source': 'device'}": 40,
        "vllm:prompt_tokens_cached_by_source_total{'source': 'host'}": 15,
        "vllm:prompt_tokens_cached_by_source_total{'source': 'external_unspecified'}": 5,
        "vllm:request_num_preemptions_bucket{'le': '1.0'}": 7,
        "vllm:request_num_preemptions_bucket{'le': '5.0'}": 8,
        "vllm:request_num_preemptions_bucket{'le': '+Inf'}": 9,
        "vllm:request_num_preemptions_sum": 4,
        "vllm:engine_sleep_state{'sleep_state': 'awake'}": 1,
        "vllm:cache_config_info{'block_size': '16', 'cache_dtype': 'float32', 'num_cpu_blocks': '40', "
        "'num_gpu_blocks': '32'}": 1,
    }
    assert expected.items() <= samples.items()
    assert "vllm:spec_decode_num_accepted_tokens_per_pos_total{'position': '3'}" not in samples


def test_vllms_dashboards_find_every_name() -> None:
    names = {name.partition("{")[0] for name in exposed(Metrics("tiny", MODEL), STATS)}
    assert names >= VLLM_SERIES


def test_older_names_have_the_same_values() -> None:
    metrics = Metrics("tiny", MODEL)
    metrics.inter_token.observe(0.2)
    samples = exposed(metrics, STATS)
    assert samples["vllm:gpu_cache_usage_perc"] == samples["vllm:kv_cache_usage_perc"] == 0.25
    older = "vllm:time_per_output_token_seconds"
    assert samples[f"{older}_sum"] == 0.2
    buckets = {name.removeprefix(older): value for name, value in samples.items() if name.startswith(older)}
    newer = "vllm:inter_token_latency_seconds"
    assert buckets == {name.removeprefix(newer): value for name, value in samples.items() if name.startswith(newer)}


def test_a_request_without_a_limit_may_fill_the_context() -> None:
    metrics = Metrics("tiny", MODEL)
    for params in (SamplingParams(max_tokens=3), SamplingParams(max_tokens=None), None):
        metrics.request(MODEL.max_model_len - 20, params)
    metrics.request(MODEL.max_model_len - 5, SamplingParams(max_tokens=10**400))
    metrics.request(MODEL.max_model_len + 1, SamplingParams(max_tokens=None))  # It is going to be refused.
    samples = exposed(metrics, {})
    assert (samples["vllm:request_params_max_tokens_sum"], samples["vllm:request_params_max_tokens_count"]) == (28, 4)
    assert samples["vllm:request_params_n_count"] == 5


def test_what_vllm_does_not_count_is_named_as_ours() -> None:
    metrics = Metrics("tiny", MODEL, connection=ConnectionCounts(2, 8))
    metrics.encoding.num_queried, metrics.encoding.num_found = 70, 40
    metrics.degradations["host_memory"] += 3
    samples = exposed(metrics, STATS | {"num_degradations": 2})
    expected = {
        "pyllm:degradations_total{'reason': 'host_memory'}": 3,
        "pyllm:degradations_total{'reason': 'device_memory'}": 2,
        "pyllm:encoding_cache_queries_total": 70,
        "pyllm:encoding_cache_hits_total": 40,
        "pyllm:num_requests_held": 1,
        "pyllm:num_requests_loading": 2,
        "pyllm:num_requests_expired_total": 9,
        "pyllm:num_preemptions_by_kind_total{'kind': 'recompute'}": 3,
        "pyllm:num_preemptions_by_kind_total{'kind': 'swap'}": 2,
        "pyllm:num_cached_blocks{'tier': 'device'}": 6,
        "pyllm:num_cached_blocks{'tier': 'host'}": 7,
        "pyllm:num_pinned_blocks": 5,
        "pyllm:kv_cache_slot_usage_perc{'tier': 'device'}": 0.75,
        "pyllm:kv_cache_slot_usage_perc{'tier': 'host'}": 0.95,
        "pyllm:kv_cache_free_runs{'tier': 'device'}": 3,
        "pyllm:kv_cache_free_runs{'tier': 'host'}": 1,
        "pyllm:kv_cache_longest_free_run{'tier': 'device'}": 12,
        "pyllm:kv_cache_longest_free_run{'tier': 'host'}": 30,
        "pyllm:loaded_prefix_hits_total": 5,
        "pyllm:num_failed_kv_loads_total": 1,
        "pyllm:num_scheduled_steps_total": 50,
        "pyllm:num_scheduled_tokens_total": 1000,
        "pyllm:rate_limit_rejections_total{'reason': 'requests'}": 0,
        "pyllm:rate_limit_rejections_total{'reason': 'tokens'}": 0,
        "pyllm:rate_limit_rejections_total{'reason': 'concurrent'}": 0,
        "pyllm:core_ready": 1,
        "pyllm:ready": 1,
        "pyllm:stalled": 0,
        "pyllm:core_connections_total": 2,
        "pyllm:resubmitted_requests_total": 8,
        "pyllm:recoveries_total": 3,
        "pyllm:num_suspects": 4,
        "pyllm:num_uncomputed_tokens": 70,
        "pyllm:quarantine_failures_total": 1,
    }
    assert expected.items() == {name: samples[name] for name in samples if name.startswith("pyllm:")}.items()


def test_each_core_has_its_own_label_and_what_api_processes_count_is_of_all() -> None:
    metrics = Metrics("tiny", MODEL)
    metrics.generation_tokens = 50
    metrics.degradations["host_memory"] += 1
    cores = {
        0: CoreFigures(STATS | {"num_degradations": 2}),
        2: CoreFigures(STATS | {"num_running": 7, "num_blocks": 64}),
        3: CoreFigures({}, is_ready=False),
    }
    text = metrics.expose(cores, metrics.counted(), Condition(True)).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name, sample.labels["engine"], sample.labels.get("reason", "")] = sample.value
    assert [found["vllm:num_requests_running", engine, ""] for engine in ("0", "2")] == [3, 7]
    assert [found["vllm:kv_cache_usage_perc", engine, ""] for engine in ("0", "2")] == [0.25, 0.125]
    assert [found["pyllm:core_ready", engine, ""] for engine in ("0", "2", "3")] == [1, 1, 0]
    assert found["pyllm:degradations_total", "0", "device_memory"] == 2
    assert found["pyllm:degradations_total", "0", "host_memory"] == 1
    assert found["vllm:generation_tokens_total", "0", ""] == 50
    assert {engine for name, engine, _ in found if name == "vllm:generation_tokens_total"} == {"0"}
    assert text.count("# TYPE vllm:num_requests_running gauge") == 1
    assert ("vllm:num_requests_running", "3", "") not in found


def test_without_a_host_pool_none_of_it_is_in_use() -> None:
    samples = exposed(Metrics("tiny", MODEL), STATS | {"num_host_blocks": 0, "num_free_host_blocks": 0})
    assert samples["vllm:cpu_cache_usage_perc"] == 0


def test_states_are_told_of_where_the_model_has_some() -> None:
    without = exposed(Metrics("tiny", MODEL), STATS)
    assert not any("states" in name for name in without)
    figures = {"num_states": 20, "num_free_states": 9, "num_cached_states": 7, "num_pinned_states": 2}
    on_host = {"num_host_states": 30, "num_free_host_states": 29, "num_cached_host_states": 28}
    samples = exposed(Metrics("tiny", MODEL), STATS | figures | on_host)
    told = {name: value for name, value in samples.items() if "_states" in name}
    assert told == {
        "pyllm:num_states{'tier': 'device'}": 20,
        "pyllm:num_states{'tier': 'host'}": 30,
        "pyllm:num_free_states{'tier': 'device'}": 9,
        "pyllm:num_free_states{'tier': 'host'}": 29,
        "pyllm:num_cached_states{'tier': 'device'}": 7,
        "pyllm:num_cached_states{'tier': 'host'}": 28,
        "pyllm:num_pinned_states": 2,
    }


def test_a_request_is_timed_from_its_arrival() -> None:
    clock = Clock()
    metrics = Metrics("tiny", MODEL, clock)
    request = metrics.request(7, SamplingParams(n=2))
    clock.now += 0.03
    request.delta(0, 1, 5)
    clock.now += 0.2
    request.delta(0, 2, 5)
    request.delta(1, 1, 5)
    clock.now += 1.0
    request.finish(0, "stop")
    request.end("abort")
    request.end("abort")
    samples = exposed(metrics, {})
    assert samples["vllm:prompt_tokens_total"] == 7
    assert samples["vllm:prompt_tokens_cached_total"] == 5
    assert samples["vllm:generation_tokens_total"] == 4
    assert samples["vllm:request_success_total{'finished_reason': 'stop'}"] == 1
    assert samples["vllm:request_success_total{'finished_reason': 'abort'}"] == 1
    assert samples["vllm:time_to_first_token_seconds_bucket{'le': '0.02'}"] == 0
    assert samples["vllm:time_to_first_token_seconds_bucket{'le': '0.04'}"] == 1
    assert samples["vllm:time_to_first_token_seconds_bucket{'le': '0.25'}"] == 2
    assert samples["vllm:inter_token_latency_seconds_count"] == 1
    assert samples["vllm:e2e_request_latency_seconds_bucket{'le': '1.5'}"] == 1
    assert samples["vllm:request_prompt_tokens_bucket{'le': '10.0'}"] == 1
    assert samples["vllm:request_prefill_kv_computed_tokens_sum"] == 2
    assert samples["vllm:request_generation_tokens_sum"] == 3
    assert samples["vllm:request_params_n_bucket{'le': '2.0'}"] == 1


def test_a_requests_time_is_told_apart() -> None:
    clock = Clock()
    metrics = Metrics("tiny", MODEL, clock)
    request = metrics.request(7, SamplingParams(n=2))
    request.started(StartTimes(4.0, 2.0))
    request.started(StartTimes(64.0, 64.0))  # another core begins it anew before its first token came
    clock.now += 8.0
    request.delta(0, 1, 0)
    clock.now += 0.25
    request.delta(1, 3, 0)
    clock.now += 0.25
    request.delta(0, 2, 0)
    request.finish(0, "stop")
    assert metrics.longest_sample_tokens.buckets()[-1] == ("+Inf", 0.0)
    clock.now += 2.0
    request.delta(1, 2, 0)
    clock.now += 32.0
    request.finish(1, "length")  # that came without a token
    samples = exposed(metrics, {})

    def figures(name: str) -> tuple[float, float]:
        return samples[f"vllm:{name}_sum"], samples[f"vllm:{name}_count"]

    assert figures("request_queue_time_seconds") == (4.0, 1)
    assert figures("request_prefill_time_seconds") == (2.0, 1)
    assert figures("request_decode_time_seconds") == (0.5 + 2.25, 2)
    assert figures("request_inference_time_seconds") == (2.5 + 4.5, 2)
    assert figures("request_time_per_output_token_seconds") == (0.5 / 2 + 2.25 / 4, 2)
    assert figures("request_max_num_generation_tokens") == (5, 1)
    assert samples["vllm:request_queue_time_seconds_bucket{'le': '2.5'}"] == 0
    assert samples["vllm:request_queue_time_seconds_bucket{'le': '5.0'}"] == 1
    assert samples["vllm:request_time_per_output_token_seconds_bucket{'le': '0.3'}"] == 1
    assert samples["vllm:request_time_per_output_token_seconds_bucket{'le': '0.75'}"] == 2
    assert samples["vllm:request_max_num_generation_tokens_bucket{'le': '2.0'}"] == 0
    assert samples["vllm:request_max_num_generation_tokens_bucket{'le': '5.0'}"] == 1


def test_one_token_takes_no_time_per_output_token() -> None:
    metrics = Metrics("tiny", MODEL, Clock())
    request = metrics.request(7, SamplingParams())
    request.started(StartTimes(4.0, 2.0))
    request.delta(0, 1, 0)
    request.finish(0, "length")
    assert (metrics.output_token_seconds.sum, sum(metrics.output_token_seconds.counts)) == (0.0, 1)
    assert (metrics.inference_seconds.sum, metrics.decode_seconds.sum) == (2.0, 0.0)


def test_a_request_that_ends_without_a_token_has_no_times() -> None:
    metrics = Metrics("tiny", MODEL, Clock())
    expired, aborted = (metrics.request(7, SamplingParams()) for _ in range(2))
    expired.finish(0, "deadline")
    aborted.started(StartTimes(4.0, 2.0))
    aborted.delta(0, 1, 0)
    aborted.end("abort")
    for histogram in (metrics.queue_seconds, metrics.prefill_seconds, metrics.decode_seconds):
        assert sum(histogram.counts) == 0
    assert sum(metrics.inference_seconds.counts) == sum(metrics.output_token_seconds.counts) == 0


def test_a_core_that_does_not_say_when_a_request_began_leaves_its_decode_time() -> None:
    metrics = Metrics("tiny", MODEL, Clock())
    request = metrics.request(7, SamplingParams())
    request.delta(0, 2, 0)
    request.finish(0, "stop")
    assert sum(metrics.decode_seconds.counts) == sum(metrics.output_token_seconds.counts) == 1
    assert sum(metrics.queue_seconds.counts) == sum(metrics.inference_seconds.counts) == 0


def test_steps_are_shown_by_their_tokens() -> None:
    sizes = {"iteration_tokens_le_16384": 7, "iteration_tokens_le_inf": 9, "iteration_tokens_le_8192": 4}
    samples = exposed(Metrics("tiny", MODEL), STATS | sizes)
    assert samples["vllm:iteration_tokens_total_bucket{'le': '1.0'}"] == 0
    assert samples["vllm:iteration_tokens_total_bucket{'le': '8192.0'}"] == 4
    assert samples["vllm:iteration_tokens_total_bucket{'le': '16384.0'}"] == 7
    assert samples["vllm:iteration_tokens_total_bucket{'le': '+Inf'}"] == 9
    assert samples["vllm:iteration_tokens_total_count"] == 9
    assert samples["vllm:iteration_tokens_total_sum"] == STATS["num_computed_tokens"]
    older = {name: value for name, value in STATS.items() if not name.startswith("iteration_tokens")}
    assert not [name for name in exposed(Metrics("tiny", MODEL), older) if "iteration_tokens" in name]


def test_bounds_reach_the_context() -> None:
    assert token_bounds(256) == [1, 2, 5, 10, 20, 50, 100, 200]
    assert token_bounds(1) == [1]


def test_a_value_on_a_bound_belongs_to_it() -> None:
    metrics = Metrics("tiny", MODEL)
    metrics.request_num_samples.observe(1)
    metrics.request_num_samples.observe(1000)
    assert metrics.request_num_samples.buckets()[0] == ("1.0", 1.0)
    assert metrics.request_num_samples.buckets()[-1] == ("+Inf", 2.0)


def test_the_counters_of_several_processes_add_up() -> None:
    one, two = Metrics("tiny", MODEL), Metrics("tiny", MODEL)
    for metrics, count in ((one, 1), (two, 10)):
        metrics.prompt_tokens += count
        metrics.encoding.num_found += count
        metrics.finished["stop"] += count
        metrics.first_token.observe(0.5 * count)
        metrics.queue_seconds.observe(0.25 * count)
    totals = Totals()
    totals.count(1, one.counted())
    totals.count(2, two.counted())
    text = one.expose({}, totals.sum(), Condition(False, True, "no step")).decode()
    samples = {
        (sample.name, sample.labels.get("finished_reason")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["vllm:prompt_tokens_total", None] == 11
    assert samples["pyllm:encoding_cache_hits_total", None] == 11
    assert samples["vllm:request_success_total", "stop"] == 11
    assert samples["vllm:request_success_total", "length"] == 0
    assert samples["vllm:time_to_first_token_seconds_sum", None] == 5.5
    assert samples["vllm:request_queue_time_seconds_sum", None] == 2.75
    assert (samples["pyllm:ready", None], samples["pyllm:stalled", None]) == (0, 1)

    assert samples["vllm:time_to_first_token_seconds_count", None] == 2
    # Every number of a process is in its row, so that none is shown as 0.
    numbers = {
        name
        for name, value in vars(one).items()
        if isinstance(value, int | dict | Histogram | EncodingCounts | ConnectionCounts)
    }
    assert {name.partition(".")[0] for name in COUNTED} == {name for name in numbers if not name.startswith("_")}


def test_what_a_core_does_not_count_is_left_out() -> None:
    stats = {name: value for name, value in STATS.items() if name != "num_recoveries"}
    assert STATS.keys() - stats.keys() == {"num_recoveries"}
    assert "pyllm:recoveries_total" not in exposed(Metrics("tiny", MODEL), stats)


def test_processes_count_by_their_titles() -> None:
    def process(name: str, pid: int, **fields: Any) -> ProcessSample:
        return ProcessSample(name=name, pid=pid, memory_bytes=10, cpu_seconds=0.5, num_threads=1, age=1.0, **fields)

    metrics = Metrics("tiny", MODEL)
    worker = process("pyllm::worker-0-0", 3, device_bytes=7, num_restarts=4)
    processes = [process("pyllm::spare", 1), process("pyllm::spare", 2), worker]
    text = metrics.expose({}, metrics.counted(), Condition(True), processes).decode()
    values = {
        (sample.name, sample.labels["process"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "process" in sample.labels
    }
    assert values["pyllm:process_memory_bytes", "pyllm::spare"] == 20
    assert values["pyllm:process_cpu_seconds_total", "pyllm::worker-0-0"] == 0.5
    assert values["pyllm:process_device_bytes", "pyllm::worker-0-0"] == 7
    assert values["pyllm:process_restarts_total", "pyllm::worker-0-0"] == 4
    assert values["pyllm:process_restarts_total", "pyllm::spare"] == 0
    assert "process_memory" not in metrics.expose({}, metrics.counted(), Condition(True)).decode()
