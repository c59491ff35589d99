"""Addresses are claimed before their model loads, and listened on by one server alone."""

import os
import socket
from pathlib import Path

import pytest

from pyllm.errors import ConfigError
from pyllm.wire.listeners import bind_listener, bind_unix_listener, claim_address, claim_endpoint, claim_path, listen
from pyllm.wire.sockets import SocketFolder


def test_listener_takes_a_free_port_and_a_taken_one_is_named() -> None:
    with bind_listener("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        assert port > 0
        first.listen()
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            bind_listener("127.0.0.1", port)


def test_of_two_that_bound_one_port_only_one_can_listen() -> None:
    with bind_listener("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with bind_listener("127.0.0.1", port) as second:
            listen(second, 8)
            listen(second, 8)  # As each API process does.
            with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: .*another process has taken it"):
                listen(first, 8)


def test_an_address_is_claimed_by_one_and_free_when_that_ends() -> None:
    address = f"127.0.0.1:{os.getpid()}"
    with claim_address(address):
        with pytest.raises(ConfigError, match=f"cannot listen on {address}: another pyllm"):
            claim_address(address)
        claim_address(f"{address}0").close()
    claim_address(address).close()


def test_a_path_is_claimed_by_one_through_its_folder_and_leaves_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    (tmp_path / "socket.lock").touch()  # of a process that was killed
    (tmp_path / "link").symlink_to(tmp_path)
    with claim_path(path):
        with pytest.raises(ConfigError, match=f"cannot listen on {tmp_path}/link/socket: another pyllm"):
            claim_path(str(tmp_path / "link/socket")).__enter__()
        with claim_path(f"{path}0"):
            pass
    assert {each.name for each in tmp_path.iterdir()} == {"link"}
    with pytest.raises(ConfigError, match="absent/socket: No such file or directory"), claim_path("/absent/socket"):
        pass


@pytest.mark.parametrize("address", ["ipc://{folder}/events", "tcp://*:{port}"])
def test_a_bound_zeromq_address_is_claimed_by_one(address: str, tmp_path: Path) -> None:
    address = address.format(folder=tmp_path, port=os.getpid())
    with claim_endpoint(address), pytest.raises(ConfigError, match="another pyllm"):
        claim_endpoint(address).__enter__()
    with claim_endpoint(address):
        pass


@pytest.mark.parametrize("address", ["", "tcp://*:0", "tcp://*:*", "inproc://events", "ipc://@events"])
def test_a_zeromq_address_that_nobody_can_take_over_is_not_claimed(address: str) -> None:
    with claim_endpoint(address), claim_endpoint(address):
        pass


def test_descriptors_are_returned() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with SocketFolder():
        pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_unix_socket_that_nobody_listens_on_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    with bind_unix_listener(path) as listener:
        listener.listen()
        with pytest.raises(ConfigError, match="another server listens there"), bind_unix_listener(path):
            pass
        assert Path(path).is_socket()
    assert not Path(path).exists()


def test_a_unix_socket_that_another_server_has_taken_over_stays(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with bind_unix_listener(str(path)):
        path.unlink()
        path.write_text("theirs")
    assert path.read_text() == "theirs"


@pytest.mark.parametrize("name", ["file", "missing/socket", "x" * 200])
def test_a_path_that_cannot_be_bound_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(ConfigError, match="--uds"), bind_unix_listener(str(tmp_path / name)):
        pass
    assert (tmp_path / "file").read_text() == "kept"
