"""The log line with the engine's throughput and load, in vLLM's words. Knows no clock and no process."""

from collections.abc import Mapping

from pyllm.frontend.observability.core_metrics import num_waiting, share

# Seconds between two lines.
STATS_INTERVAL = 10.0


class StatsLine:
    """Makes the lines of one engine, each about the time since the one before."""

    def __init__(self) -> None:
        self._before = (0, 0)  # prompt tokens and generated tokens
        self._lookups = (0, 0)  # of the prefix cache: tokens that were looked up, and found
        self._hit_rate = 0.0
        self._was_busy = False

    def line(
        self, stats: Mapping[str, int], num_prompt_tokens: int, num_generation_tokens: int, seconds: float
    ) -> str | None:
        """The line for the last `seconds`; None if the engine was idle in them and in the interval before.

        `stats` are the core's. Both numbers of tokens count from the start.
        """
        prompt, generated = num_prompt_tokens - self._before[0], num_generation_tokens - self._before[1]
        self._before = num_prompt_tokens, num_generation_tokens
        queries, hits = stats["prefix_queries"] - self._lookups[0], stats["prefix_hits"] - self._lookups[1]
        if queries < 0:  # Another core counts from 0.
            queries, hits = stats["prefix_queries"], stats["prefix_hits"]
        self._lookups = stats["prefix_queries"], stats["prefix_hits"]
        if queries:
            self._hit_rate = hits / queries
        running, waiting = stats["num_running"], num_waiting(stats)
        is_busy = bool(prompt or generated or running or waiting)
        if not is_busy and not self._was_busy:
            return None
        self._was_busy = is_busy
        usage = share(stats["num_used_blocks"], stats["num_blocks"])
        return (
            f"Avg prompt throughput: {prompt / seconds:.1f} tokens/s, "
            f"Avg generation throughput: {generated / seconds:.1f} tokens/s, "
            f"Running: {running} reqs, Waiting: {waiting} reqs, "
            f"GPU KV cache usage: {100 * usage:.1f}%, Prefix cache hit rate: {100 * self._hit_rate:.1f}%"
        )
