"""Keys that are made for one connection: only their client is let in, and nobody reads the other one's secret."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from pyllm.wire import curve, ipc

PATIENCE = 300  # milliseconds in which a message of a client that is let in has long come


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(0)


def comes_through(context: zmq.Context[zmq.Socket[bytes]], server: curve.CurveKeys, client: curve.CurveKeys) -> bool:
    with ipc.bind(context, zmq.DEALER, "tcp://127.0.0.1:0", server) as bound:
        address = bound.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        with ipc.connect(context, address, client) as connecting:
            connecting.send(b"hello")
            return bool(bound.poll(PATIENCE))


def test_only_the_client_of_the_pair_is_let_in(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    pairs, others = curve.key_pairs(), curve.key_pairs()
    authenticator = curve.admit(context, pairs.client.public)
    try:
        assert comes_through(context, pairs.server, pairs.client)
        stranger = curve.CurveKeys(others.client.public, others.client.secret, pairs.server.public)
        assert not comes_through(context, pairs.server, stranger)
    finally:
        authenticator.stop()


async def test_written_keys_are_those_that_a_core_reads(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    pairs, folder = curve.key_pairs(), tmp_path / "keys"
    curve.write_server_keys(folder, pairs)
    curve.write_client_keys(tmp_path / "client", pairs.client)
    assert curve.server_keys(folder) == pairs.server
    assert curve.client_keys(tmp_path / "client") == pairs.client
    assert {path.stat().st_mode & 0o777 for path in (folder, folder / "server.key_secret")} == {0o700, 0o600}
    authenticator = curve.authenticate(context, folder)
    try:
        assert await asyncio.to_thread(comes_through, context, pairs.server, pairs.client)
    finally:
        authenticator.stop()


def test_secrets_are_not_shown() -> None:
    pairs = curve.key_pairs()
    assert pairs.server.secret.decode() not in repr(pairs)
    assert pairs.client.secret.decode() not in repr(pairs)
