"""However requests end, and in whatever order, nothing stays taken."""

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from pyllm.config.api_keys import Allowance
from pyllm.config.process_config import SharedConfig
from pyllm.frontend.shared.messages import LOST, REASONS, Admission, Granted, Refused
from pyllm.frontend.shared.shared_state import SharedState

CONFIG = SharedConfig(max_num_seqs=2, max_num_queued_reqs=3, max_num_queued_tokens=40)
ALLOWANCE = Allowance(max_tokens_per_minute=100, max_concurrent_requests=3)
STEPS = st.lists(
    st.tuples(st.sampled_from(["admit", "charge", "started", "ended", "drop"]), st.integers(0, 2), st.integers(0, 9)),
    max_size=80,
)


@given(STEPS)
@example([("admit", 0, 1), ("started", 0, 1), ("charge", 0, 1)])
def test_no_place_is_lost_however_a_request_ends(steps: list[tuple[str, int, int]]) -> None:
    now = [0.0]
    state = SharedState(CONFIG, lambda: now[0])
    model: dict[tuple[int, int], str] = {}
    for step, owner, ticket in steps:
        now[0] += 1.0
        account = f"account {ticket % 2}"
        if step == "admit" and (owner, ticket) not in model:
            answer = state.admit(owner, Admission(ticket, account, ALLOWANCE, ticket % 3 + 1))
            if isinstance(answer, Granted):
                model[owner, ticket] = account
            assert sum(each == account for each in model.values()) <= ALLOWANCE.max_concurrent_requests
        elif step == "charge":
            if isinstance(state.charge(owner, ticket, 5 * ticket), Refused):
                model.pop((owner, ticket), None)
        elif step == "started":
            state.started(owner, ticket)
            state.started(owner, ticket)
        elif step == "ended":
            state.ended(owner, ticket, ticket)
            model.pop((owner, ticket), None)
        elif step == "drop":
            state.drop(owner)
            model = {key: name for key, name in model.items() if key[0] != owner}
        assert state.num_tickets == len(model)
    for owner in range(3):
        state.drop(owner)
    assert (state.num_tickets, state._queue.num_queued, state._queue.num_tokens) == (0, 0, 0)
    assert (state._queue._num_waiting, state._queue._num_running) == (0, 0)
    now[0] += 3600.0
    for ticket in range(ALLOWANCE.max_concurrent_requests):
        assert isinstance(state.admit(0, Admission(ticket, "account 0", ALLOWANCE)), Granted)


def test_a_full_queue_takes_nothing_from_a_budget() -> None:
    state = SharedState(SharedConfig(max_num_seqs=1, max_num_queued_reqs=1), lambda: 0.0)
    allowance = Allowance(max_requests_per_minute=3)
    assert isinstance(state.admit(0, Admission(1, "a", allowance)), Granted)
    assert isinstance(state.admit(0, Admission(2, "a", allowance)), Granted)
    full = state.admit(0, Admission(3, "a", allowance))
    assert isinstance(full, Refused)
    assert full.reason == "max_num_queued_reqs"
    state.ended(0, 2, 0)
    last = state.admit(0, Admission(4, "a", allowance))
    assert isinstance(last, Granted)
    assert last.requests is not None
    assert last.requests.remaining == 0


def test_tokens_are_counted_only_where_somebody_limits_them() -> None:
    admission = Admission(1, "a", Allowance(max_requests_per_minute=3))
    unlimited = SharedState(SharedConfig(), lambda: 0.0).admit(0, admission)
    queued = SharedState(SharedConfig(max_num_queued_tokens=9), lambda: 0.0).admit(0, admission)
    limited = SharedState(SharedConfig(), lambda: 0.0).admit(0, Admission(1, "a", ALLOWANCE))
    assert [answer.counts_tokens for answer in (unlimited, queued, limited) if isinstance(answer, Granted)] == [
        False,
        True,
        True,
    ]


def test_the_messages_travel() -> None:
    for message in (
        Admission(1, "a", ALLOWANCE, 2),
        Granted(counts_tokens=True),
        Refused("requests", "text", 1.5),
    ):
        data = msgspec.msgpack.encode(message)
        assert msgspec.msgpack.decode(data, type=Admission | Granted | Refused) == message


def test_a_ticket_that_is_not_open_was_lost_and_refused_by_nobody() -> None:
    state = SharedState(SharedConfig(), lambda: 0.0)
    refused = state.charge(0, 1, 5)
    assert isinstance(refused, Refused)
    assert refused.reason == LOST
    assert refused.reason not in REASONS
