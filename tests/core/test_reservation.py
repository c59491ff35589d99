"""A core that clients reserve for requests that were lost with another one: for how long, and what they are told."""

from itertools import groupby, pairwise

from hypothesis import given
from hypothesis import strategies as st

from pyllm.core.reservation import Reservation
from pyllm.wire.messages import MAX_RESERVATION, PROTOCOL_VERSION, RESERVATION, Hello, LoadReport, Reserve
from tests.core.raw_engine import EPOCH, Engine


def listening() -> Engine:
    """A core with two clients that want load reports, and were told the first."""
    engine = Engine()
    for identity in (b"client", b"other"):
        engine.receive(Hello(PROTOCOL_VERSION, wants_load_reports=True), identity)
    engine.sent.clear()
    return engine


def reservations(engine: Engine) -> list[tuple[bytes, float]]:
    """What each client was told of it, and is not told again."""
    told = [(identity, each.reserved_for) for identity, each in engine.sent if isinstance(each, LoadReport)]
    engine.sent.clear()
    return told


def test_all_clients_hear_at_once_that_it_is_reserved_and_that_it_is_no_longer() -> None:
    engine = listening()
    engine.receive(Reserve(EPOCH))
    assert reservations(engine) == [(b"client", RESERVATION), (b"other", RESERVATION)]
    engine.now += RESERVATION / 2
    engine.core.beat()
    assert not reservations(engine)  # Nothing is new.
    engine.receive(Reserve(EPOCH), b"other")
    engine.core.beat()
    assert reservations(engine) == [(b"client", RESERVATION), (b"other", RESERVATION)]
    engine.now += RESERVATION
    engine.core.beat()
    assert reservations(engine) == [(b"client", 0.0), (b"other", 0.0)]


def test_who_comes_later_hears_how_long_it_lasts() -> None:
    engine = listening()
    engine.receive(Reserve(EPOCH))
    engine.now += 1.0
    engine.sent.clear()
    engine.receive(Hello(PROTOCOL_VERSION, wants_load_reports=True), b"third")
    assert reservations(engine) == [(b"third", RESERVATION - 1.0)]


def test_a_message_to_the_core_before_reserves_nothing() -> None:
    engine = listening()
    engine.receive(Reserve(EPOCH - 1))
    assert not reservations(engine)


@given(st.lists(st.sampled_from([1, 1, 1, 2, 5, 30]), max_size=150))
def test_whoever_asks_it_is_reserved_for_half_of_the_time_at_most_and_never_for_long(pauses: list[int]) -> None:
    now = 0.0
    reservation = Reservation(lambda: now)
    reserved: list[bool] = []  # in each second
    for pause in pauses:
        reservation.begin_or_extend()
        for _ in range(pause):
            reserved.append(reservation.seconds_left > 0)
            assert reservation.seconds_left <= RESERVATION
            now += 1.0
    for _ in range(int(RESERVATION + MAX_RESERVATION)):  # Nobody asks any more.
        reserved.append(reservation.seconds_left > 0)
        now += 1.0
    lengths = [(is_reserved, len(list(run))) for is_reserved, run in groupby(reserved)]
    for (is_reserved, length), (_, rest) in pairwise(lengths):
        assert not is_reserved or RESERVATION <= length <= MAX_RESERVATION
        assert not is_reserved or rest >= length
