"""How many cores there are to be: by the tokens that wait for them, and by the share of their KV caches that is in use.

A policy for Ray Serve's autoscaler, which adds the bounds and the delays. Knows no request.
"""

import math
from collections.abc import Mapping
from typing import Any

QUEUED_TOKENS = "queued_tokens"
KV_USE = "kv_use"


def scale(context: Any, *, queued_tokens: float = 4096.0, kv_use: float = 0.8) -> tuple[int, dict[str, Any]]:
    """The number of cores so that each has at most `queued_tokens` waiting, and a share `kv_use` of its blocks in use.

    `context` is Ray's `AutoscalingContext`. While no core has reported, nothing changes.
    """
    metrics = context.aggregated_metrics or {}
    queued, used = _values(metrics, QUEUED_TOKENS), _values(metrics, KV_USE)
    if not queued or not used:
        return context.target_num_replicas, {}
    return max(1, math.ceil(sum(queued) / queued_tokens), math.ceil(sum(used) / kv_use)), {}


def _values(metrics: Mapping[str, Mapping[Any, float]], name: str) -> list[float]:
    return list(metrics.get(name, {}).values())
