"""The meeting of ranks on CPUs at a rendezvous, where rank 0 listens. Knows no tensor.

On one machine rank 0 passes on a file in memory, which no name refers to. Over TCP it passes on the addresses of all
ranks, and each connects to those before it with which it exchanges tensors.
"""

import hmac
import logging
import os
import socket
import time
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from pyllm_kernels._cpu import RankExchange

from pyllm.errors import ConfigError

TIMEOUT = 1800.0  # seconds of an exchange, and of the meeting: ranks may load their weights at different speeds
_INTRODUCTION_TIMEOUT = 10.0  # seconds for the first messages of a connection
_RETRY_INTERVAL = 0.01  # seconds between two looks for rank 0
_MAX_BYTES = 1 << 20  # of a message of the meeting
_NONCE_BYTES = 32
_ENDED = "a rank ended while the ranks met"

logger = logging.getLogger(__name__)


class Place(NamedTuple):
    """Rank `rank` of `num_stages` pipeline stages of `size` ranks each, in the order of ranks."""

    rank: int
    size: int
    num_stages: int = 1

    @property
    def num_ranks(self) -> int:
        return self.size * self.num_stages

    def peers(self) -> list[int]:
        """The ranks with which this one exchanges tensors: those of its stage, and its neighbours."""
        first = self.rank // self.size * self.size
        ranks = [self.rank - self.size, *range(first, first + self.size), self.rank + self.size]
        return [rank for rank in ranks if rank != self.rank and 0 <= rank < self.num_ranks]


class _Introduction(msgspec.Struct):
    """The first message of a connection over TCP: its rank, the address where it listens, a proof of the secret."""

    rank: int
    host: str
    port: int
    proof: bytes = b""

    def proven(self, secret: bytes, nonce: bytes) -> bytes:
        return hmac.digest(secret, nonce + f"{self.rank} {self.host} {self.port}".encode(), "sha256")


def meet(place: Place, rendezvous: str, host: str = "", secret: bytes = b"", timeout: float = TIMEOUT) -> RankExchange:
    """Wait until all ranks have arrived at `rendezvous`; see `RankGroup.join`.

    Raises:
        ConfigError: this machine does not have the address `host`.
        TimeoutError: a rank did not arrive in time.
        ConnectionError: a rank ended meanwhile.
    """
    deadline = time.monotonic() + timeout
    if rendezvous.startswith("file://"):
        return _meet_in_memory(place, rendezvous.removeprefix("file://"), deadline, timeout)
    server_host, _, port = rendezvous.removeprefix("tcp://").rpartition(":")
    sockets = _meet_over_tcp(place, (server_host, int(port)), host or server_host, secret, deadline)
    return RankExchange.over_tcp([(rank, each.detach()) for rank, each in sockets.items()], *place, timeout)


def _meet_in_memory(place: Place, path: str, deadline: float, timeout: float) -> RankExchange:
    connections: list[socket.socket] = []
    try:
        if place.rank == 0:
            memory = os.memfd_create("pyllm-ranks")
            for connection in _connections(path, place.num_ranks - 1, deadline):
                connections.append(connection)
                socket.send_fds(connection, [b"1"], [memory])
        else:
            connections.append(_connect(socket.AF_UNIX, path, deadline))
            _, descriptors, _, _ = socket.recv_fds(connections[0], 1, 1)
            if not descriptors:
                raise ConnectionError(_ENDED)
            (memory,) = descriptors
        try:
            exchange = RankExchange.in_memory(memory, *place, timeout)
        finally:
            os.close(memory)
        _wait_for_all(place, connections)
    finally:
        for connection in connections:
            connection.close()
    return exchange


def _connections(path: str, number: int, deadline: float) -> Iterator[socket.socket]:
    """Connections of other ranks of this machine to a socket that exists meanwhile."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        try:
            server.listen(number)
            for _ in range(number):
                yield _accept(server, deadline)
        finally:
            os.unlink(path)


def _wait_for_all(place: Place, connections: list[socket.socket]) -> None:
    """Return when all ranks have called this; rank 0 is connected to all, the others to rank 0."""
    if place.rank > 0:
        connections[0].sendall(b"1")
    for connection in connections:
        _read(connection, 1)
    if place.rank == 0:
        for connection in connections:
            connection.sendall(b"1")


def _meet_over_tcp(
    place: Place, first: tuple[str, int], host: str, secret: bytes, deadline: float
) -> dict[int, socket.socket]:
    """A socket to each of this rank's peers. `first` is the address of rank 0."""
    found: dict[int, socket.socket] = {}
    try:
        with _listen(*(first if place.rank == 0 else (host, 0))) as server:
            own = _Introduction(place.rank, host, server.getsockname()[1])
            if place.rank == 0:
                addresses = {0: first}
                while len(found) < place.num_ranks - 1:
                    introduction, connection = _admit(server, secret, deadline)
                    found[introduction.rank] = connection
                    addresses[introduction.rank] = introduction.host, introduction.port
                for connection in found.values():
                    _write(connection, msgspec.msgpack.encode(addresses))
            else:
                found[0] = _introduce(own, first, secret, deadline)
                addresses = msgspec.msgpack.decode(_message(found[0]), type=dict[int, tuple[str, int]])
                for rank in place.peers():
                    if 0 < rank < place.rank:
                        found[rank] = _introduce(own, addresses[rank], secret, deadline)
                while later := {rank for rank in place.peers() if rank > place.rank} - found.keys():
                    introduction, connection = _admit(server, secret, deadline)
                    if introduction.rank in later:
                        found[introduction.rank] = connection
        return {rank: found.pop(rank) for rank in place.peers()}
    finally:
        for connection in found.values():
            connection.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=_family(host))
    except OSError as error:
        raise ConfigError(
            f"ranks cannot listen on {host}:{port}: {error.strerror}; give this machine an address of its own"
        ) from None


def _admit(server: socket.socket, secret: bytes, deadline: float) -> tuple[_Introduction, socket.socket]:
    """The next connection of a rank, which knows the secret; others are closed."""
    while True:
        connection = _accept(server, deadline)
        connection.settimeout(_INTRODUCTION_TIMEOUT)
        try:
            nonce = os.urandom(_NONCE_BYTES)
            connection.sendall(nonce)
            introduction = msgspec.msgpack.decode(_message(connection), type=_Introduction)
            if hmac.compare_digest(introduction.proof, introduction.proven(secret, nonce)):
                connection.settimeout(_left(deadline))
                return introduction, connection
            logger.warning("closed a connection to this rank: it does not know the secret of this start")
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("closed a connection to this rank: %s", error)
        connection.close()


def _introduce(own: _Introduction, address: tuple[str, int], secret: bytes, deadline: float) -> socket.socket:
    connection = _connect(_family(address[0]), address, deadline)
    own.proof = own.proven(secret, _read(connection, _NONCE_BYTES))
    _write(connection, msgspec.msgpack.encode(own))
    return connection


def _accept(server: socket.socket, deadline: float) -> socket.socket:
    server.settimeout(_left(deadline))
    connection, _ = server.accept()
    connection.settimeout(_left(deadline))
    return connection


def _connect(family: socket.AddressFamily, address: str | tuple[str, int], deadline: float) -> socket.socket:
    """Connect to a rank as soon as it listens."""
    while True:
        left = _left(deadline)
        connection = socket.socket(family)
        connection.settimeout(left)
        try:
            connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            time.sleep(_RETRY_INTERVAL)
        except BaseException:
            connection.close()
            raise
        else:
            return connection


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _left(deadline: float) -> float:
    """Seconds until the deadline. Raises TimeoutError."""
    if (left := deadline - time.monotonic()) <= 0:
        raise TimeoutError("not all ranks arrived at their rendezvous")
    return left


def _write(connection: socket.socket, message: bytes) -> None:
    connection.sendall(len(message).to_bytes(4, "little") + message)


def _message(connection: socket.socket) -> bytes:
    size = int.from_bytes(_read(connection, 4), "little")
    if size > _MAX_BYTES:
        raise ConnectionError(f"a message of {size} bytes")
    return _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (part := connection.recv(size - len(data))):
            raise ConnectionError(_ENDED)
        data += part
    return data
