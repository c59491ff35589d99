"""How many cores there are to be, and which of them live: arithmetic, without a cluster."""

from typing import Any, NamedTuple

import pytest

from pyllm.ray.core_registry import BEAT_TIMEOUT, CoreRegistration, LiveCores
from pyllm.ray.scaling_policy import KV_USE, QUEUED_TOKENS, CoreScaling


class Context(NamedTuple):
    """As much of Ray's as the policy reads."""

    aggregated_metrics: dict[str, dict[str, float]] | None
    target_num_replicas: int = 2


@pytest.mark.parametrize(
    ("queued", "used", "wanted"),
    [
        ([0], [0.0], 1),
        ([100], [0.1], 1),
        ([101], [0.1], 2),
        ([250, 60], [0.1, 0.1], 4),
        ([0, 0, 0], [0.5, 0.5, 0.5], 3),
        ([0, 0, 0], [0.1, 0.1, 0.1], 1),
    ],
)
def test_cores_are_as_many_as_their_work_needs(queued: list[float], used: list[float], wanted: int) -> None:
    metrics: Any = {QUEUED_TOKENS: dict(enumerate(queued)), KV_USE: dict(enumerate(used))}
    assert CoreScaling(queued_tokens=100, kv_use=0.5)(Context(metrics)) == (wanted, {})


@pytest.mark.parametrize("metrics", [None, {}, {QUEUED_TOKENS: {}, KV_USE: {}}])
def test_nothing_changes_before_a_core_has_reported(metrics: Any) -> None:
    assert CoreScaling()(Context(metrics, target_num_replicas=7)) == (7, {})


def test_a_core_that_says_nothing_new_is_gone_by_our_own_clock() -> None:
    live, silent = LiveCores(), CoreRegistration("tcp://a", "", "", beat=5)
    for now in range(int(BEAT_TIMEOUT) + 2):
        beating = CoreRegistration("tcp://b", "", "", beat=now)
        live.look({"a": silent, "b": beating}, float(now))
        is_there = now < BEAT_TIMEOUT
        assert set(live.live(float(now))) == ({"a", "b"} if is_there else {"b"})
        assert live.silent(float(now)) == ([] if is_there else ["a"])
        assert live.beating() == ([beating] if now else [])  # A core of an earlier run may be in the registry.
    live.look({"a": CoreRegistration("tcp://a", "", "", beat=6)}, 100.0)
    assert set(live.live(100.0)) == {"a"}
