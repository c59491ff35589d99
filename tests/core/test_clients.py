from pyllm.core.clients import CLIENT_SILENCE, MAX_HELD_MESSAGES, Clients
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.ipc import PeerGoneError
from pyllm.wire.messages import CoreMessage, Deltas, Heartbeat, Reply


class SlowSender:
    """Takes messages while `open`; forgets identities in `gone`."""

    def __init__(self) -> None:
        self.open = True
        self.gone: set[bytes] = set()
        self.sent: list[tuple[bytes, CoreMessage]] = []

    def send(self, message: CoreMessage, *frames: object, identity: bytes = b"") -> bool:
        if identity in self.gone:
            raise PeerGoneError(identity.hex())
        if self.open:
            self.sent.append((identity, message))
        return self.open

    def close(self, linger: float = 0.0) -> None:
        self.open = False


class Fixture:
    def __init__(self) -> None:
        self.sender = SlowSender()
        self.deltas: dict[int, Deltas] = {}
        self.dropped: list[int] = []
        self.clients = Clients(self.sender, lambda index: self.deltas.pop(index, None), self.dropped.append)


def deltas(tokens: bytes) -> Deltas:
    return Deltas(1, b"", b"", b"", b"", tokens, b"", b"")


def test_second_hello_keeps_the_index() -> None:
    clients = Fixture().clients
    assert [clients.register(name) for name in (b"a", b"b", b"a")] == [0, 1, 0]


def test_stranger_has_no_index() -> None:
    assert Fixture().clients.seen(b"stranger") is None


def test_slow_client_gets_everything_in_order_and_deltas_wait_in_the_scheduler() -> None:
    fixture = Fixture()
    index = fixture.clients.register(b"a")
    fixture.sender.open = False
    fixture.clients.post(index, Reply(1, True))
    fixture.deltas[index] = deltas(b"1234")
    fixture.clients.deliver([index])
    assert index in fixture.deltas  # not taken: the scheduler goes on merging them
    fixture.sender.open = True
    fixture.clients.deliver([index])
    assert [message for _, message in fixture.sender.sent] == [Reply(1, True), deltas(b"1234")]


def test_slow_client_that_goes_is_dropped_when_its_turn_comes() -> None:
    fixture = Fixture()
    index = fixture.clients.register(b"a")
    fixture.sender.open = False
    for number in range(3):
        fixture.clients.post(index, Reply(number, True))
    fixture.sender.gone.add(b"a")
    fixture.clients.beat()
    assert fixture.dropped == [index]


def test_held_messages_are_sent_again_on_a_beat() -> None:
    fixture = Fixture()
    index = fixture.clients.register(b"a")
    fixture.sender.open = False
    fixture.clients.post(index, Reply(1, True))
    fixture.sender.open = True
    fixture.clients.beat()
    assert fixture.sender.sent == [(b"a", Reply(1, True))]


def test_client_that_reads_nothing_is_dropped_once() -> None:
    fixture = Fixture()
    index = fixture.clients.register(b"a")
    fixture.sender.open = False
    for number in range(MAX_HELD_MESSAGES + 5):
        fixture.clients.post(index, Reply(number, True))
    assert fixture.dropped == [index]
    assert len(fixture.clients) == 0


def test_silent_client_is_dropped_and_a_seen_one_is_not() -> None:
    fixture = Fixture()
    silent = fixture.clients.register(b"silent")
    fixture.clients.register(b"alive")
    for _ in range(int(CLIENT_SILENCE / HEARTBEAT_INTERVAL)):
        fixture.clients.beat()
    assert fixture.clients.seen(b"alive") == 1
    assert fixture.dropped == []
    fixture.clients.beat()
    assert fixture.dropped == [silent]


def test_disconnected_client_is_dropped_on_send() -> None:
    fixture = Fixture()
    index = fixture.clients.register(b"a")
    fixture.sender.gone.add(b"a")
    fixture.clients.post_all(Heartbeat())
    assert fixture.dropped == [index]
    assert fixture.clients.register(b"a") != index  # ids are never used again
