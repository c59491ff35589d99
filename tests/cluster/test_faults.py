"""Which pause came of which fault."""

from tests.cluster.faults import AFTERMATH, Fault, pauses_by_fault
from tests.cluster.load import Pause

CUT = Fault("link", "machine-0", 10.0, 15.0)
KILL = Fault("core", "machine-1", 20.0, 20.0)


def test_a_pause_is_of_the_last_fault_that_began_before_it() -> None:
    pauses = [Pause(2.0, 4.0), Pause(9.9, 16.0), Pause(19.8, 22.0), Pause(24.0, 25.5)]
    table = pauses_by_fault([CUT, KILL], pauses)
    assert {kind: (row["pauses"], row["longest_s"]) for kind, row in table.items()} == {
        "link": (1, 6.1),
        "core": (2, 2.2),
        "none": (1, 2.0),
    }


def test_a_pause_long_after_a_fault_is_not_of_it() -> None:
    late = KILL.end + AFTERMATH
    table = pauses_by_fault([KILL], [Pause(late - 1.0, late), Pause(late + 1.0, late + 3.0)])
    assert (table["core"]["pauses"], table["none"]["pauses"]) == (1, 1)


def test_each_fault_has_its_longest_pause() -> None:
    again = KILL._replace(begin=60.0, end=60.0)
    silent = KILL._replace(begin=100.0, end=100.0)
    table = pauses_by_fault([KILL, again, silent], [Pause(20.0, 23.0), Pause(20.0, 21.0), Pause(60.0, 61.5)])
    assert table["core"] == {"faults": 3, "longest_s": 3.0, "median_s": 1.5, "pauses": 3}
