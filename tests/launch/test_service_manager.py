"""What systemd hears, on a socket that the test holds."""

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyllm.launch.service_manager import ServiceManager


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@pyllm-test-{tmp_path.name}-{id(tmp_path)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        receiving.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        receiving.settimeout(5)
        yield address, receiving


def test_it_hears_of_each_change(manager: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    address, receiving = manager
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    service = ServiceManager()
    for tell in (service.reloaded, service.ready, service.reloaded, service.stopping):
        tell()
    heard = [receiving.recv(1000).decode().split("\n") for _ in range(4)]
    assert [lines[0] for lines in heard] == ["READY=1", "RELOADING=1", "READY=1", "STOPPING=1"]
    assert heard[1][1].startswith("MONOTONIC_USEC=")


def test_without_one_nothing_is_said_and_one_that_is_gone_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ServiceManager("").ready()
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        ServiceManager(str(tmp_path / "gone")).ready()
    assert "cannot be told" in caplog.text
