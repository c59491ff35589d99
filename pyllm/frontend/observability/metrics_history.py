"""The last minutes of the series that the page draws, with which its charts begin. Knows no page and no HTTP."""

import asyncio
import contextlib
import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
from prometheus_client.samples import Sample

from pyllm.client.client import EngineClient
from pyllm.client.core_connection import Condition
from pyllm.errors import PyllmError
from pyllm.frontend.observability.core_metrics import figures_of_cores
from pyllm.frontend.observability.metrics import Metrics
from pyllm.frontend.shared.remote_state import Shared

INTERVAL = 2.0  # seconds between two samples, as on the page
MAX_LOOKS = 300  # Ten minutes of some 100 numbers each.

# The series of the page's charts and events.
SERIES = frozenset(
    {
        *("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:kv_cache_usage_perc"),
        *("vllm:num_requests_running", "vllm:num_requests_waiting"),
        *("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
        *("vllm:time_to_first_token_seconds_bucket", "vllm:inter_token_latency_seconds_bucket"),
        *("vllm:request_queue_time_seconds_bucket", "vllm:e2e_request_latency_seconds_bucket"),
        *("vllm:admission_rejections_total", "pyllm:degradations_total", "pyllm:quarantine_failures_total"),
        *("pyllm:recoveries_total", "pyllm:core_connections_total", "pyllm:resubmitted_requests_total"),
    }
)


class Looks(msgspec.Struct, frozen=True):
    """`GET /metrics/history`: the age of each sample in seconds, oldest first, and each series' values or null."""

    ages: list[float]
    series: dict[str, list[float | None]]


class MetricsHistory:
    """The history of all cores' and API processes' metrics, as in `/metrics`; `clock` gives seconds."""

    def __init__(
        self, metrics: Metrics, client: EngineClient, shared: Shared, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._metrics = metrics
        self._client = client
        self._shared = shared
        self._clock = clock
        self._columns: dict[str, int] = {}  # index of each series in a sample's numbers, where NaN is no value
        self._looks: deque[tuple[float, Sequence[float]]] = deque(maxlen=MAX_LOOKS)

    async def follow(self) -> None:
        """Take a sample every `INTERVAL` seconds; skip it while the engine or the shared state does not answer."""
        while True:
            with contextlib.suppress(PyllmError, TimeoutError):
                await self.look()
            await asyncio.sleep(INTERVAL)

    async def look(self) -> None:
        """Keep a sample of the current metrics.

        Raises:
            EngineDeadError: the state that API processes share does not answer.
        """
        cores = await figures_of_cores(self._client)
        totals = await self._shared.totals(self._metrics.counted())
        families = self._metrics.shown(cores, totals, Condition(True)).collect()
        samples = [sample for family in families for sample in family.samples if sample.name in SERIES]
        values = {_name(sample): sample.value for sample in samples}
        for name in values:
            self._columns.setdefault(name, len(self._columns))
        self._looks.append((self._clock(), array("d", [values.get(name, math.nan) for name in self._columns])))

    def looks(self) -> Looks:
        """The samples that are kept."""
        now = self._clock()
        ages = [round(now - at, 3) for at, _ in self._looks]
        rows = [row for _, row in self._looks]
        return Looks(ages, {name: [_value(row, at) for row in rows] for name, at in self._columns.items()})


def _name(sample: Sample) -> str:
    """The series' name as in Prometheus' text, without the label of the model, which all series share."""
    labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items() if name != "model_name")
    return f"{sample.name}{{{labels}}}"


def _value(row: Sequence[float], at: int) -> float | None:
    return None if at >= len(row) or math.isnan(row[at]) else row[at]
