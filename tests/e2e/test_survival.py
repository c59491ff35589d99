"""Streams whose worker or core is killed under them go on as if nothing had happened, token by token.

Some of the kills; `python -m tests.e2e.kill_everywhere` has them all.
"""

import pytest

from tests.e2e.kill_everywhere import at_events, at_instants, at_steps
from tests.e2e.kills import Tally


def assert_survived(tally: Tally, least_counted: int) -> None:
    print(tally.record("kills"))
    assert tally.others == []
    assert (tally.lost, tally.repeated) == (0, 0)
    assert tally.counted >= least_counted


async def test_worker_killed_at_a_step() -> None:
    assert_survived(await at_steps(first=4, stride=17, most_runs=2), 3)


async def test_any_rank_of_three_killed() -> None:
    assert_survived(await at_steps(ranks=3, rank=1, first=20, most_runs=1), 1)


@pytest.mark.parametrize("title", ["pyllm::worker-0-0", "pyllm::core-0"])
def test_process_of_a_server_killed(title: str) -> None:
    assert_survived(at_events(title, [60, 200]), 2)


def test_processes_killed_at_random() -> None:
    assert_survived(at_instants("pyllm::core-0", 1), 1)
