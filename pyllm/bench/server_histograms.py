"""What a server's own metrics say of a load: the means of its latencies, where it has vLLM's Prometheus histograms.

Reads sums and counts before a load and after it, so that they are exact. Most servers have none, which is no error.
"""

import re
from collections.abc import Mapping

from pyllm.bench.endpoint import Endpoint
from pyllm.bench.request_metrics import MILLISECONDS, Figures

_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": "ttft",
    "vllm:inter_token_latency_seconds": "itl",
    "vllm:request_time_per_output_token_seconds": "tpot",
    "vllm:e2e_request_latency_seconds": "e2el",
}
_LINE = re.compile(rf"^({'|'.join(_HISTOGRAMS)})_(sum|count)(?:\{{.*\}})? (\S+)", re.MULTILINE)
_OK = 200

Totals = Mapping[tuple[str, str], float]


async def read_totals(endpoint: Endpoint) -> Totals:
    """Sum and count of each latency in seconds, over all labels; empty where the server does not say."""
    client = endpoint.client()
    try:
        exchange = await client.send(endpoint.metrics_request())
    finally:
        client.close()
    if exchange.failure or exchange.status != _OK:
        return {}
    return parse_totals(b"".join(piece for _, piece in exchange.pieces).decode(errors="replace"))


def parse_totals(text: str) -> Totals:
    """Sum and count of each latency in a text of Prometheus' format."""
    totals: dict[tuple[str, str], float] = {}
    for name, part, value in _LINE.findall(text):
        key = _HISTOGRAMS[name], part
        totals[key] = totals.get(key, 0.0) + float(value)
    return totals


def server_figures(before: Totals, after: Totals) -> Figures:
    """The means between two readings, in milliseconds."""
    figures: Figures = {}
    for metric in _HISTOGRAMS.values():
        number = after.get((metric, "count"), 0.0) - before.get((metric, "count"), 0.0)
        if number > 0:
            seconds = after[metric, "sum"] - before.get((metric, "sum"), 0.0)
            figures[f"server_mean_{metric}_ms"] = seconds / number * MILLISECONDS
    return figures
