"""Streams whose worker or core is killed under them go on as if nothing had happened, token by token.

Some of the kills; `python -m tests.e2e.kill_everywhere` has them all.
"""

import pytest

from tests.e2e.kill_everywhere import at_event, at_steps, live
from tests.e2e.kills import Tally
from tests.e2e.titles import CORE, WORKER
from tests.tiers import full

NUM_TOKENS = 24


def assert_survived(tally: Tally, least_counted: int) -> None:
    print(tally.record("kills that count"))
    assert tally.others == []
    assert (tally.lost, tally.repeated) == (0, 0)
    assert tally.counted >= least_counted


async def test_worker_killed_at_a_step() -> None:
    assert_survived(await at_steps(first=14, most_runs=1, num_tokens=NUM_TOKENS, warm_spares=False), least_counted=1)


@pytest.mark.parametrize(
    "kills",
    [
        [(CORE, 100)],
        full([(WORKER, 60), (CORE, 80)]),
    ],
)
def test_processes_of_a_server_killed(kills: list[tuple[str, int]]) -> None:
    tally = live([at_event(title, number) for title, number in kills], NUM_TOKENS)
    assert_survived(tally, least_counted=len(kills))
