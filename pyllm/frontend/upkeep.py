"""The regular work of an API process beside its requests: the line of statistics, and reports of refused requests."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyllm.errors import PyllmError
from pyllm.frontend.shared.messages import QUEUE_REASONS
from pyllm.supervision.burst_logger import BurstLogger

if TYPE_CHECKING:
    from pyllm.client.client import EngineClient
    from pyllm.frontend.observability.metrics import Metrics
    from pyllm.frontend.shared.remote_state import Shared

logger = logging.getLogger(__name__)


async def log_stats(client: "EngineClient", shared: "Shared", metrics: "Metrics", prefix: str = "") -> None:
    """Log throughput, queue and cache regularly while requests run; `prefix` comes before each line."""
    from pyllm.frontend.observability.stats_line import STATS_INTERVAL, StatsLine

    lines, before = StatsLine(), time.monotonic()
    while True:
        await asyncio.sleep(STATS_INTERVAL)
        try:
            stats = await client.stats()
            sums = metrics.summed(await shared.totals(metrics.counted()))
        except (PyllmError, TimeoutError):  # The next line covers this interval, too.
            continue
        now = time.monotonic()
        line = lines.line(stats, sums.prompt_tokens, sums.generation_tokens, now - before)
        before = now
        if line is not None:
            logger.info("%s%s", prefix, line)


def shed_reports(metrics: "Metrics") -> Callable[[], None]:
    """A function to call twice a second: it logs when requests were refused because the queue is full."""
    burst = BurstLogger("the queue is full: requests are refused with a 503")
    return lambda: burst.look(sum(metrics.rejected[reason] for reason in QUEUE_REASONS))
