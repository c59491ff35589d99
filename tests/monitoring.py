"""What `deploy/monitoring` and `deploy/autoscaling` ask Prometheus: queries, and the series that they select."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.plain_yaml import read_yaml

DEPLOY = Path(__file__).parents[1] / "deploy"
MONITORING = DEPLOY / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
RULES: list[dict[str, Any]] = read_yaml((MONITORING / "alerts.yaml").read_text())["groups"][0]["rules"]
ADAPTER: list[dict[str, Any]] = read_yaml((DEPLOY / "autoscaling/adapter.yaml").read_text())["rules"]["custom"]
_SELECTOR = re.compile(r"(?:(?:vllm|pyllm):\w+|\bup\b)(?:\{[^}]*\})?")
# Series that the dashboards in `examples` of vLLM 0.33, and of versions before and after it, ask for, and that vLLM
# always has: those of its connectors and of sampled blocks are left out.
_VLLM_SERIES = """
    cache_config_info e2e_request_latency_seconds_bucket e2e_request_latency_seconds_count
    e2e_request_latency_seconds_sum engine_sleep_state external_prefix_cache_hits_total
    external_prefix_cache_queries_total generation_tokens_total gpu_cache_usage_perc inter_token_latency_seconds_bucket
    inter_token_latency_seconds_count inter_token_latency_seconds_sum iteration_tokens_total_count kv_cache_usage_perc
    num_preemptions_total num_requests_running num_requests_swapped num_requests_waiting num_requests_waiting_by_reason
    prefix_cache_hits_total prefix_cache_queries_total prompt_tokens_by_source_total
    prompt_tokens_cached_by_source_total prompt_tokens_cached_total prompt_tokens_total request_decode_time_seconds_sum
    request_generation_tokens_bucket request_generation_tokens_count request_generation_tokens_sum
    request_max_num_generation_tokens_sum request_num_preemptions_bucket request_params_max_tokens_bucket
    request_prefill_time_seconds_sum request_prompt_tokens_bucket request_queue_time_seconds_sum request_success_total
    request_time_per_output_token_seconds_bucket request_time_per_output_token_seconds_count
    request_time_per_output_token_seconds_sum spec_decode_num_accepted_tokens_total spec_decode_num_draft_tokens_total
    spec_decode_num_drafts_total time_per_output_token_seconds_bucket time_per_output_token_seconds_count
    time_per_output_token_seconds_sum time_to_first_token_seconds_bucket time_to_first_token_seconds_count
    time_to_first_token_seconds_sum
"""
VLLM_SERIES = {f"vllm:{name}" for name in _VLLM_SERIES.split()}
# What Grafana and the adapter put in.
_VALUES = {"$job": "pyllm", "$instance": ".*", "$model_name": ".*", "$__rate_interval": "1m"}


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """Each query with its panel's title."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], _filled(target["expr"])


def adapter_queries() -> Iterator[tuple[str, str]]:
    """Each query with the name that its figure has in Kubernetes."""
    for rule in ADAPTER:
        (series,) = re.findall(r"__name__='([\w:]+)'", rule["seriesQuery"])
        query = rule["metricsQuery"].replace("<<.Series>>", series).replace("<<.LabelMatchers>>", "job='pyllm'")
        yield rule["name"]["as"], query.replace("<<.GroupBy>>", "instance")


def selectors() -> set[str]:
    """Every selection of series in the rules, the dashboard and its variables."""
    variables = [variable.get("query") for variable in DASHBOARD["templating"]["list"]]
    texts = [rule["expr"] for rule in RULES] + [query for _, query in dashboard_queries()]
    texts += [_filled(query["query"]) for query in variables if isinstance(query, dict)]
    return {selector for text in texts for selector in _SELECTOR.findall(text)}


def _filled(query: str) -> str:
    for name, value in _VALUES.items():
        query = query.replace(name, value)
    return query
