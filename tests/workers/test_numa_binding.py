"""Ranks on the NUMA nodes of machines that are made up."""

import pytest

from pyllm.machine.processor import NumaNode
from pyllm.workers.numa_binding import cpus_of_rank

NODES = [NumaNode(0, "0-3,8-11", 1), NumaNode(1, "4-7,12-15", 1), NumaNode(2, "", 1)]  # the last has memory alone
FIRST, SECOND = {0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (1, [FIRST | SECOND]),
        (2, [FIRST, SECOND]),
        (3, [FIRST | SECOND] * 3),
        (4, [FIRST, FIRST, SECOND, SECOND]),
    ],
)
def test_nodes_share_ranks_evenly_or_not_at_all(ranks: int, expected: list[set[int]]) -> None:
    assert [cpus_of_rank(rank, ranks, NODES, FIRST | SECOND) for rank in range(ranks)] == expected


def test_only_usable_cpus_count() -> None:
    assert cpus_of_rank(1, 2, NODES, {0, 1, 4, 12}) == {4, 12}
    assert cpus_of_rank(1, 2, NODES, {0, 1, 4}) == {0, 1, 4}  # A thread would wait for the others.
    assert cpus_of_rank(1, 2, NODES, {0, 1}) == {0, 1}
    assert cpus_of_rank(1, 2, [], {0, 1}) == {0, 1}
