"""The wanted number of cores, by the waiting tokens and by the share of KV blocks in use.

A policy for Ray Serve's autoscaler, which adds the bounds and the delays. Knows no requests.
"""

import math
from collections.abc import Mapping
from typing import Any

QUEUED_TOKENS = "queued_tokens"
KV_USE = "kv_use"


class CoreScaling:
    """Enough cores for at most `queued_tokens` waiting tokens and a share `kv_use` of KV blocks in use at each."""

    def __init__(self, queued_tokens: float = 4096.0, kv_use: float = 0.8) -> None:
        self._queued_tokens = queued_tokens
        self._kv_use = kv_use

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number of replicas for Ray's `AutoscalingContext`; unchanged while no core has reported."""
        metrics = context.aggregated_metrics or {}
        queued, used = _values(metrics, QUEUED_TOKENS), _values(metrics, KV_USE)
        if not queued or not used:
            return context.target_num_replicas, {}
        wanted = max(math.ceil(sum(queued) / self._queued_tokens), math.ceil(sum(used) / self._kv_use))
        return max(1, wanted), {}


def _values(metrics: Mapping[str, Mapping[Any, float]], name: str) -> list[float]:
    return list(metrics.get(name, {}).values())
