"""A socket is followed by a fresh one; what an older one held or brings is dropped."""

import errno

import zmq

from pyllm.wire.ipc import MalformedHandler, MessageHandler, PeerGoneError
from pyllm.wire.link import Link


class Socket:
    """Takes messages while it is quick, and has no peer once it is gone."""

    def __init__(self) -> None:
        self.is_quick = True
        self.is_gone = False
        self.is_closed = False
        self.taken: list[str] = []
        self.on_disconnect = lambda: None
        self.on_message: MessageHandler[str]
        self.on_malformed: MalformedHandler

    def connect(self, on_message: MessageHandler[str], on_malformed: MalformedHandler, on_disconnect) -> "Socket":  # type: ignore[no-untyped-def]  # as `Connect` has it
        self.on_message, self.on_malformed, self.on_disconnect = on_message, on_malformed, on_disconnect
        return self

    def send(self, message: str, *frames: object, identity: bytes = b"") -> bool:
        if self.is_gone:
            raise PeerGoneError("")
        if self.is_quick:
            self.taken.append(message)
        return self.is_quick

    def close(self, linger: float = 0.0) -> None:
        self.is_closed = True


class Owner:
    def __init__(self) -> None:
        self.heard: list[str] = []
        self.num_losses = 0
        self.link: Link[str, str] = Link(self.heard.append, self.heard.append, self.lose)

    def lose(self) -> None:
        self.num_losses += 1


def test_what_a_slow_peer_does_not_take_is_sent_in_order() -> None:
    owner, socket = Owner(), Socket()
    owner.link.post("to nobody")
    owner.link.open(socket.connect)
    owner.link.post("first")
    socket.is_quick = False
    owner.link.post("second")
    socket.is_quick = True
    owner.link.post("third")
    assert (socket.taken, owner.link.num_unsent) == (["first"], 2)
    owner.link.flush()
    assert (socket.taken, owner.link.num_unsent) == (["first", "second", "third"], 0)


def test_an_older_socket_is_closed_and_not_heard() -> None:
    owner, old, new = Owner(), Socket(), Socket()
    owner.link.open(old.connect)
    old.is_quick = False
    owner.link.post("for the old one")
    owner.link.open(new.connect)
    old.on_message(b"", "late")
    old.on_malformed(b"", "late, too")
    old.on_disconnect()
    new.on_message(b"", "heard")
    owner.link.flush()
    assert (owner.heard, owner.num_losses, old.is_closed, new.taken) == (["heard"], 0, True, [])


def test_a_loss_is_told_once_however_it_is_noticed() -> None:
    owner, socket = Owner(), Socket()
    owner.link.open(socket.connect)
    socket.is_quick = False
    owner.link.post("held")
    socket.is_gone = True
    owner.link.flush()
    socket.on_disconnect()
    socket.on_message(b"", "late")
    assert (owner.num_losses, owner.heard, owner.link.is_open, owner.link.num_unsent) == (1, [], False, 0)


def test_a_socket_that_cannot_be_made_is_as_none() -> None:
    def connect(*handlers: object) -> Socket:
        raise zmq.ZMQError(errno.EMFILE)

    owner = Owner()
    owner.link.open(connect)
    owner.link.post("to nobody")
    assert (owner.link.is_open, owner.num_losses) == (False, 0)
