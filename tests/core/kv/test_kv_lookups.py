"""Requests that wait to hear what is outside, and which of it is worth a load."""

import numpy as np

from pyllm._rust import Scheduler
from pyllm.core.kv.kv_lookups import KVLookups, LoadSpeed
from pyllm.kv_transfer import HOLD_SECONDS
from tests.core.offering_connector import OfferingConnector
from tests.core.remembering_executor import BLOCK_SIZE


class LookedUp:
    """Look-ups of one rank over a scheduler of small prompts; `now` is their clock."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(
            block_size=BLOCK_SIZE,
            num_blocks=32,
            max_num_seqs=4,
            max_num_batched_tokens=32,
            max_model_len=64,
            vocab_size=99,
        )
        self.connector = OfferingConnector()
        self.now = 0.0
        self.lookups = KVLookups(self.scheduler, self.connector, lambda: self.now)

    def add(self, request: int, token: int) -> None:
        """A request for 17 of a token."""
        self.scheduler.add(0, request, np.full(17, token, "<i4").tobytes(), seed=0, max_tokens=1)

    def compute(self, request: int, token: int, seconds: float) -> None:
        """One that nobody looks up, whose prompt takes so long."""
        self.add(request, token)
        plan = self.scheduler.schedule(self.now)
        assert plan is not None
        self.scheduler.commit(plan.step, np.array([0, 1], "<i4"), np.array([7], "<i4"), seconds)


def test_a_request_is_held_until_it_is_known_what_there_is() -> None:
    looked_up = LookedUp()
    looked_up.connector.knows = False
    looked_up.add(1, 5)
    looked_up.lookups.add((0, 1))
    looked_up.lookups.advance()
    assert (looked_up.lookups.num_held, looked_up.scheduler.stats()["num_held"]) == (1, 1)
    assert looked_up.scheduler.schedule(0.0) is None
    looked_up.connector.knows = True
    looked_up.lookups.advance()
    assert (looked_up.lookups.num_held, looked_up.scheduler.stats()["num_held"]) == (0, 0)
    plan = looked_up.scheduler.schedule(0.0)
    assert plan is not None
    assert plan.num_tokens == 1, "all but the last token is loaded by the step"
    assert looked_up.lookups.offered((0, 1)).request_id == "0/1"


def test_a_connector_that_never_says_holds_a_request_for_a_while() -> None:
    looked_up = LookedUp()
    looked_up.connector.knows = False
    looked_up.add(1, 5)
    looked_up.lookups.add((0, 1))
    looked_up.now = HOLD_SECONDS
    looked_up.lookups.advance()
    plan = looked_up.scheduler.schedule(0.0)
    assert plan is not None
    assert plan.num_tokens == 17


def test_all_that_is_held_runs_when_nothing_more_is_looked_for() -> None:
    looked_up = LookedUp()
    looked_up.connector.knows = False
    for request in range(3):
        looked_up.add(request, request)
        looked_up.lookups.add((0, request))
    looked_up.lookups.release_all()
    assert (looked_up.lookups.num_held, looked_up.scheduler.stats()["num_held"]) == (0, 0)


def test_loads_that_fail_are_not_worth_their_time() -> None:
    looked_up = LookedUp()
    looked_up.compute(1, 0, seconds=8.5)
    looked_up.lookups.measure(16, 16, seconds=0.1)  # It would be fast if it had brought anything.
    looked_up.add(2, 5)
    looked_up.lookups.add((0, 2))
    stats = looked_up.lookups.stats()
    assert (stats["num_kv_matched_tokens"], stats["num_kv_skipped_hits"]) == (16, 1)


def test_a_short_load_says_nothing_of_a_long_one() -> None:
    looked_up = LookedUp()
    looked_up.compute(1, 0, seconds=8.5)
    looked_up.lookups.measure(2000, 0, seconds=1e6)
    looked_up.add(2, 5)
    looked_up.lookups.add((0, 2))
    assert looked_up.lookups.stats()["num_kv_skipped_hits"] == 0


def test_requests_that_ended_without_a_word_are_forgotten() -> None:
    looked_up = LookedUp()
    for request in range(6):
        looked_up.connector.knows = request < 3
        looked_up.add(request, request)
        looked_up.lookups.add((0, request))
    looked_up.scheduler.abort(0, 0)
    looked_up.scheduler.abort(0, 5)
    looked_up.lookups.end_missing()
    assert looked_up.connector.finished == ["0/0", "0/5"]
    assert looked_up.lookups.num_held == 2
    looked_up.lookups.end((0, 1))
    looked_up.lookups.end((0, 9))
    assert looked_up.connector.finished[2:] == ["0/1", "0/9"]


def test_what_was_never_measured_is_worth_a_load() -> None:
    assert LoadSpeed().is_faster(1000, 0.001)
    assert LoadSpeed().tokens_per_second == 0


def test_a_load_is_worth_it_while_it_is_faster_and_now_and_then_else() -> None:
    speed = LoadSpeed()
    speed.measure(100, 1.0)
    assert speed.tokens_per_second == 100
    assert speed.is_faster(100, 1.1)
    assert speed.is_faster(100, None)
    assert [speed.is_faster(100, 0.9) for _ in range(32)] == [False] * 15 + [True] + [False] * 15 + [True]


def test_the_newest_measurement_weighs_a_quarter() -> None:
    speed = LoadSpeed()
    speed.measure(1, 1.0)
    speed.measure(1, 3.0)
    assert not speed.is_faster(2, 2.9)
    assert speed.is_faster(2, 3.1)
