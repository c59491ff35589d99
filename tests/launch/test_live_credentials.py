"""Which keys and certificate are in force: what was read last, and could be used."""

import logging
import shutil
from pathlib import Path

import msgspec
import pytest

from pyllm.config.api_keys import new_key
from pyllm.config.credentials import Credentials, read_credentials
from pyllm.config.server_settings import ServerConfig
from pyllm.launch.live_credentials import LiveCredentials
from pyllm.launch.service_manager import ServiceManager
from pyllm.launch.topology import SuccessiveApis
from tests.certificates import self_signed
from tests.frontend.api_config import api_config


def write(path: Path, *names: str) -> None:
    path.write_text(f'{{"keys": [{", ".join(new_key(name)[1] for name in names)}]}}')
    path.chmod(0o600)


def names(credentials: Credentials) -> list[str]:
    return [key.name for key in credentials.keys]


def test_api_processes_that_come_later_get_what_is_in_force_and_not_what_the_files_hold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "second").mkdir()
    (cert, key), (other_cert, _), keys = self_signed(tmp_path), self_signed(tmp_path / "second"), tmp_path / "keys.json"
    write(keys, "a", "b")
    server = ServerConfig(api_key_file=str(keys), ssl_certfile=cert, ssl_keyfile=key)
    live = LiveCredentials(server, read_credentials(server), ServiceManager(""))
    configure = SuccessiveApis(api_config(tmp_path, "ipc:///run/core"), live).configure
    assert names(configure("").credentials) == ["a", "b"]  # type: ignore[attr-defined]
    write(keys, "b", "c")
    assert live.news() == b""
    assert names(configure("").credentials) == ["a", "b"]  # type: ignore[attr-defined]
    live.ask()
    news = live.news()
    assert live.news() is news
    assert msgspec.msgpack.decode(news, type=Credentials) == live.current
    assert names(live.current) == ["b", "c"]
    write(keys, "d")
    shutil.copy(other_cert, cert)  # Its key is still the old one's.
    live.ask()
    with caplog.at_level(logging.ERROR):
        assert live.news() is not news
    assert live.news() == news
    assert "keys and certificates stay as they are: cannot use the certificate" in caplog.text
    assert names(configure("").credentials) == ["b", "c"]  # type: ignore[attr-defined]
