"""What clients of several cores are told of this one, and when."""

from array import array
from typing import Any

from pyllm._rust import Placement
from pyllm.core.clients import Clients
from pyllm.core.faults.lost_requests import LostRequests
from pyllm.core.load_reports import INTERVAL, PART_BYTES, PARTS_AT_ONCE, LoadReporter
from pyllm.wire.messages import PROTOCOL_VERSION, RESERVATION, CoreMessage, Hello, LoadReport, Reserve
from tests.core.raw_engine import EPOCH, Engine
from tests.core.remembering_executor import BLOCK_SIZE, RememberingExecutor

PROMPT = list(range(1, 4 * BLOCK_SIZE + 2))


def reports_of(engine: Engine, identity: bytes = b"client") -> list[LoadReport]:
    """What a client was told, and is not told again."""
    told = [each for receiver, each in engine.sent if receiver == identity and isinstance(each, LoadReport)]
    engine.sent.clear()
    return told


def listening() -> Engine:
    """A core whose client wants load reports."""
    engine = Engine(RememberingExecutor())
    engine.receive(Hello(PROTOCOL_VERSION, wants_load_reports=True))
    return engine


async def test_a_client_hears_what_a_core_has_to_do_and_has_cached() -> None:
    engine, placement = listening(), Placement(block_size=BLOCK_SIZE)
    for core in (0, 1):
        placement.add_core(core)
    engine.submit(7, PROMPT, max_tokens=3)
    await engine.run_dry()
    told = reports_of(engine)
    for each in told:
        placement.update_core(1, each.last_request, each.changes, each.load)
    assert (told[-1].num_requests, told[-1].last_request) == (0, 7)
    prompt = array("i", PROMPT).tobytes()
    assert placement.place(1, prompt, 3, [0, 1]) == (1, 4 * BLOCK_SIZE)


async def test_it_hears_so_at_most_every_interval_while_steps_follow_one_another() -> None:
    engine = listening()
    engine.submit(7, PROMPT, max_tokens=30)
    await engine.core.step()
    reports_of(engine)
    for _ in range(8):
        engine.now += INTERVAL / 4
        await engine.core.step()
    assert len(reports_of(engine)) == 2
    await engine.run_dry()
    assert reports_of(engine)[-1].num_requests == 0  # At once, as the core has nothing left to do.
    await engine.run_dry()
    engine.core.beat()
    assert not reports_of(engine)  # Nothing is new.


async def test_each_client_hears_of_its_own_requests_and_how_many_there_are() -> None:
    engine = listening()
    engine.receive(Hello(PROTOCOL_VERSION, wants_load_reports=True), b"other")
    engine.submit(7, PROMPT)
    engine.submit(9, PROMPT)
    engine.core.beat()
    assert [(each.last_request, each.num_requests) for each in reports_of(engine, b"other")] == [(0, 0), (0, 2)]
    engine.receive(Hello(PROTOCOL_VERSION, wants_load_reports=True))  # It has forgotten all.
    (again,) = reports_of(engine)
    assert (again.last_request, again.num_requests) == (9, 2)


async def test_who_is_slow_hears_all_of_it_later() -> None:
    engine, placement = listening(), Placement(block_size=BLOCK_SIZE)
    placement.add_core(0)
    told = reports_of(engine)
    engine.slow = True
    engine.submit(7, PROMPT, max_tokens=3)
    await engine.run_dry()
    engine.slow = False
    engine.core.beat()
    engine.core.beat()
    for each in [*told, *reports_of(engine)]:
        placement.update_core(0, each.last_request, each.changes, each.load)
    assert placement.place(1, array("i", PROMPT).tobytes(), 3, [0]) == (0, 4 * BLOCK_SIZE)


async def test_who_does_not_ask_is_told_nothing() -> None:
    engine = Engine(RememberingExecutor())
    engine.submit(7, PROMPT, max_tokens=3)
    await engine.run_dry()
    engine.core.beat()
    assert not reports_of(engine)


class LargeCache:
    """A scheduler whose cache takes 12 parts to tell."""

    def stats(self) -> dict[str, int]:
        return {"num_requests": 0}

    def load_report(self, number: int) -> tuple[int, bytes, bytes]:
        return (min(number + 1, 11), bytes(PART_BYTES) if number < 11 else b"", b"load")


def test_a_large_cache_is_told_in_parts_of_which_one_turn_takes_several() -> None:
    sent: list[CoreMessage] = []

    class Sender:
        def send(self, message: CoreMessage, *frames: object, identity: bytes = b"") -> bool:
            sent.append(message)
            return True

        def close(self, linger: float = 0.0) -> None:
            """Nothing is open."""

    clients = Clients(Sender(), lambda client: None, lambda client: None)
    cache: Any = LargeCache()  # as much of a scheduler as is asked for
    reporter = LoadReporter(cache, clients, LostRequests(cache), epoch=1, clock=lambda: 0.0)
    reporter.add(clients.register(b"client"))
    reporter.send(at_once=True)
    assert len(sent) == PARTS_AT_ONCE
    reporter.send(at_once=True)
    assert len(sent) == 12


def reserved_for(engine: Engine) -> list[tuple[bytes, float]]:
    """The reservation that each client was told of since the last call."""
    told = [(identity, each.reserved_for) for identity, each in engine.sent if isinstance(each, LoadReport)]
    engine.sent.clear()
    return told


def test_all_clients_hear_at_once_that_a_core_is_reserved_and_that_it_is_no_longer() -> None:
    engine = listening()
    engine.receive(Hello(PROTOCOL_VERSION, wants_load_reports=True), b"other")
    engine.sent.clear()
    for ask in range(3):
        engine.receive(Reserve(EPOCH), b"other" if ask else b"client")
        engine.core.beat()
        assert reserved_for(engine) == [(b"client", RESERVATION), (b"other", RESERVATION)]
        engine.now += RESERVATION / 2
        engine.core.beat()
        assert not reserved_for(engine)  # Nothing is new.
    engine.now += RESERVATION / 2
    engine.core.beat()
    assert reserved_for(engine) == [(b"client", 0.0), (b"other", 0.0)]


def test_a_new_client_hears_how_long_a_reservation_lasts() -> None:
    engine = listening()
    engine.receive(Reserve(EPOCH))
    engine.now += 1.0
    engine.sent.clear()
    engine.receive(Hello(PROTOCOL_VERSION, wants_load_reports=True), b"third")
    assert reserved_for(engine) == [(b"third", RESERVATION - 1.0)]


def test_a_reservation_of_the_core_before_changes_nothing() -> None:
    engine = listening()
    engine.sent.clear()
    engine.receive(Reserve(EPOCH - 1))
    assert not reserved_for(engine)
