"""Who goes next on a thread that several share, by a clock that the work itself moves."""

import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllm.workers.grammar.fair_thread import FairThread, Share
from tests.tiers import cases

PATIENT = 60.0


class Bench:
    """A thread, its clock, and what was done on it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.done: list[str] = []
        self.thread = FairThread("shared", lambda: self.now)

    def work(self, name: str, seconds: float) -> Callable[[], None]:
        def work() -> None:
            self.now += seconds
            self.done.append(name)

        return work

    def hold(self) -> Callable[[], None]:
        """Have the thread wait, so that what is asked for meanwhile waits, too; gives what lets it go on."""
        begun, go_on = threading.Event(), threading.Event()

        def wait() -> None:
            begun.set()
            assert go_on.wait(PATIENT)

        self.thread.submit(Share(), wait)
        assert begun.wait(PATIENT)
        return go_on.set

    def finish(self) -> list[str]:
        """What was done, once all is."""
        self.thread.submit(Share(self.now + 1e9), lambda: None).result(PATIENT)
        self.thread.close()
        return self.done


def test_what_is_asked_for_is_given_or_raised() -> None:
    bench = Bench()
    assert bench.thread.submit(Share(), lambda: 7).result(PATIENT) == 7
    with pytest.raises(ZeroDivisionError):
        bench.thread.submit(Share(), lambda: 1 / 0).result(PATIENT)
    bench.thread.close()
    with pytest.raises(RuntimeError):
        bench.thread.submit(Share(), lambda: 7)


def test_equals_go_in_their_order() -> None:
    bench = Bench()
    go_on = bench.hold()
    for number in range(20):
        bench.thread.submit(Share(), bench.work(str(number), 0.1))
    go_on()
    assert bench.finish() == list(map(str, range(20)))


@pytest.mark.parametrize("place", [0, 1, 15, 28])
def test_who_asks_for_little_waits_for_one_dear_piece_at_most(place: int) -> None:
    bench = Bench()
    dear, cheap = [Share() for _ in range(30)], Share()
    for share in dear:
        bench.thread.submit(share, bench.work("first", 1.0)).result(PATIENT)
    bench.thread.submit(cheap, bench.work("first", 0.001)).result(PATIENT)
    bench.done.clear()
    go_on = bench.hold()

    def work() -> None:
        bench.work("dear", 1.0)()
        if len(bench.done) % 30 == place:  # It comes while a dear piece is being done, in each of several rounds.
            bench.thread.submit(cheap, bench.work("cheap", 0.001))

    for _ in range(3):
        for share in dear:
            bench.thread.submit(share, work)
    go_on()
    done = bench.finish()
    comes = [index for index in range(1, len(done)) if index % 30 == place]
    assert [index for index, name in enumerate(done) if name == "cheap"] == comes
    assert len(comes) >= 3


def test_a_dear_party_waits_behind_cheap_ones_that_come_later() -> None:
    bench = Bench()
    dear, cheap = [Share() for _ in range(10)], [Share() for _ in range(10)]
    for share in dear:
        bench.thread.submit(share, bench.work("first", 1.0)).result(PATIENT)
    for share in cheap:
        bench.thread.submit(share, bench.work("first", 0.001)).result(PATIENT)
    bench.done.clear()
    go_on = bench.hold()
    for share in dear:
        bench.thread.submit(share, bench.work("dear", 1.0))
    for share in cheap:
        bench.thread.submit(share, bench.work("cheap", 0.001))
    go_on()
    assert bench.finish() == ["cheap"] * 10 + ["dear"] * 10


def test_new_parties_wait_behind_those_that_are_known_to_ask_for_little() -> None:
    bench = Bench()
    cheap = Share()
    bench.thread.submit(cheap, bench.work("first", 0.001)).result(PATIENT)
    bench.done.clear()
    go_on = bench.hold()
    for _ in range(5):
        bench.thread.submit(Share(), bench.work("new", 1.0))
    bench.thread.submit(cheap, bench.work("cheap", 0.001))
    go_on()
    assert bench.finish() == ["cheap", *["new"] * 5]


@given(costs=st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6))
@settings(max_examples=cases(40))
def test_those_who_always_ask_for_more_get_the_same(costs: list[float]) -> None:
    bench = Bench()
    had = [0.0] * len(costs)
    shares = [Share() for _ in costs]
    done = threading.Event()
    go_on = bench.hold()

    def ask(party: int) -> None:
        def work() -> None:
            bench.now += costs[party]
            had[party] += costs[party]
            if bench.now > 40 * max(costs):
                done.set()
            else:
                ask(party)
                assert max(had) - min(had) < 4 * max(costs)

        results.append(bench.thread.submit(shares[party], work))

    results: list[object] = []
    for party in range(len(costs)):
        ask(party)
    go_on()
    assert done.wait(PATIENT)
    bench.finish()
    assert max(had) - min(had) < 4 * max(costs)
