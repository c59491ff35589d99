"""Records of crashes are whole, private, few and small; what goes wrong in writing them reaches no caller."""

import base64
import itertools
import logging
import os
import resource
import stat
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllm.config import process_config
from pyllm.config.api_keys import ApiKey
from pyllm.config.credentials import Credentials
from pyllm.config.option_reading import option_names
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import ConfigError
from pyllm.supervision.flight_recorder import (
    SECRET_FIELDS,
    FlightRecorder,
    config_json,
    default_folder,
    list_records,
    resolve_folder,
)
from tests.frontend.api_config import api_config

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def ticking(step: float = 1.0) -> Any:
    """A clock that moves on by `step` seconds a look; backwards if that is negative."""
    moments = (START + timedelta(seconds=step * number) for number in itertools.count())
    return lambda: next(moments)


def contents(record: Path | None) -> dict[str, bytes]:
    assert record is not None
    return {file.name: file.read_bytes() for file in record.iterdir()}


def test_a_record_is_a_private_folder_of_plain_files(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "crashes"
    record = FlightRecorder(folder, clock=ticking()).record("core 0", {"report.json": b"{}", "core 0.log": b"end"})
    assert record is not None
    assert record.parent == folder
    assert record.name.startswith("20260102T030405.000000Z-core-0-")
    assert contents(record) == {"report.json": b"{}", "core-0.log": b"end"}
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, record, *record.iterdir())]
    assert modes == [0o700, 0o700, 0o600, 0o600]


def test_records_are_listed_latest_first(tmp_path: Path) -> None:
    assert list_records(tmp_path / "not there") == []
    recorder = FlightRecorder(tmp_path, clock=ticking())
    recorder.record("core 0", {"report.json": b"{}"})
    recorder.record("worker-0-1", {"log": b"end"})
    (tmp_path / "notes").mkdir()
    latest, first = list_records(tmp_path)
    assert (latest.name, latest.files, latest.time) == ("worker-0-1", {"log": 3}, "2026-01-02T03:04:06+00:00")
    assert (first.name, first.files, first.folder[:9]) == ("core-0", {"report.json": 2}, "20260102T")


def test_no_name_leads_out_of_the_folder_nor_to_another_part(tmp_path: Path) -> None:
    parts = {"../../etc/passwd": b"1", "2-a": b"2", "a": b"3", "a/": b"4", "..": b"5", "/": b"6", "x" * 300: b"7"}
    record = FlightRecorder(tmp_path).record("../" * 9, parts)
    assert sorted(contents(record).values()) == sorted(parts.values())
    assert list(tmp_path.iterdir()) == [record]


def test_a_part_that_is_too_large_keeps_its_end_and_says_so(tmp_path: Path) -> None:
    log = b"".join(b"line %d\n" % number for number in range(1000))
    record = FlightRecorder(tmp_path, max_bytes=400).record("core", {"core.log": log, "report.json": b"{}"})
    written = contents(record)
    assert written["report.json"] == b"{}"
    assert len(written["core.log"]) == 398
    assert written["core.log"].startswith(b"[the end of %d bytes]\n" % len(log))
    assert written["core.log"].endswith(log[-300:])


@given(
    parts=st.dictionaries(st.text(max_size=6), st.binary(max_size=120), max_size=6),
    max_bytes=st.integers(0, 300),
)
def test_all_parts_together_are_within_the_bound_and_whole_where_they_fit(
    parts: dict[str, bytes], max_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        written = contents(FlightRecorder(Path(folder), max_bytes=max_bytes).record("core", parts))
        assert len(written) == len(parts)
        assert sum(map(len, written.values())) <= max_bytes
        if sum(map(len, parts.values())) <= max_bytes:
            assert sorted(written.values()) == sorted(parts.values())


@settings(max_examples=30)
@given(keep=st.integers(1, 5), steps=st.lists(st.integers(-3, 3), max_size=12))
def test_there_are_never_more_records_and_the_last_is_one_of_them(keep: int, steps: list[int]) -> None:
    """Whatever the clock does meanwhile."""
    moments = (START + timedelta(seconds=seconds) for seconds in itertools.accumulate(steps))
    with tempfile.TemporaryDirectory() as folder:
        recorder = FlightRecorder(Path(folder), keep=keep, clock=lambda: next(moments))
        for number in range(1, len(steps) + 1):
            record = recorder.record("core", {"report.json": b"{}"})
            names = os.listdir(folder)
            assert len(names) == min(number, keep)
            assert record is not None
            assert record.name in names


def test_the_oldest_leave_first_and_nothing_that_is_not_ours(tmp_path: Path) -> None:
    ours = tmp_path / ".20250101T000000.000000Z-core-left-half-written"
    ours.mkdir()
    others = [tmp_path / "my notes", tmp_path / ".hidden", tmp_path / "20250101", tmp_path / "20250101T000000.000000Z-"]
    for other in others[:-1]:
        other.mkdir()
    others[-1].symlink_to(others[0])
    recorder = FlightRecorder(tmp_path, keep=2, clock=ticking())
    records = [recorder.record("core", {"report.json": b"{}"}) for _ in range(4)]
    assert set(tmp_path.iterdir()) == {*records[2:], *others}


def test_several_processes_write_into_one_folder(tmp_path: Path) -> None:
    """All at the same moment, as their clock has it, and all remove each other's."""
    code = (
        "import sys; from datetime import datetime; from pathlib import Path\n"
        "from pyllm.supervision.flight_recorder import FlightRecorder\n"
        "recorder = FlightRecorder(Path(sys.argv[1]), keep=3, clock=lambda: datetime(2026, 1, 2))\n"
        "records = [recorder.record('core', {'a': b'1', 'b': b'2'}) for _ in range(100)]\n"
        "sys.exit(None in records)"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    records = list(tmp_path.iterdir())
    assert len(records) == 3
    assert all(contents(record) == {"a": b"1", "b": b"2"} for record in records)


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    assert FlightRecorder(tmp_path / "file" / "crashes").record("core", {"report.json": b"{}"}) is None
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert str(tmp_path / "file" / "crashes") in warning.getMessage()


def test_a_full_disk_is_one_warning_and_leaves_nothing_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # Python ignores the signal, and gets an error.
    try:
        assert FlightRecorder(tmp_path).record("core", {"report.json": b"{}", "core.log": bytes(5000)}) is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(caplog.records) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"XDG_STATE_HOME": "/var/state"}, Path("/var/state/pyllm/crashes")),
        ({"XDG_STATE_HOME": ""}, Path.home() / ".local/state/pyllm/crashes"),
        ({}, Path.home() / ".local/state/pyllm/crashes"),
    ],
)
def test_the_default_is_the_users_state_folder(environment: dict[str, str], folder: Path) -> None:
    assert default_folder(environment) == folder


def test_a_folder_that_was_given_is_absolute_and_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_folder("crashes") == str(tmp_path / "crashes")
    assert stat.S_IMODE((tmp_path / "crashes").stat().st_mode) == 0o700
    assert list((tmp_path / "crashes").iterdir()) == []


def test_a_folder_that_was_given_must_be_usable_and_the_default_need_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot write to flight_recorder_dir .*/file: "):
        resolve_folder(str(tmp_path / "file"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert resolve_folder("") == str(tmp_path / "file" / "pyllm" / "crashes")


def test_the_configuration_is_told_without_secrets(tmp_path: Path) -> None:
    digest = "0123456789abcdef" * 4
    credentials = Credentials(file_keys=(ApiKey(name="team-a", sha256=digest),), private_key=b"geheim")
    config = api_config(tmp_path, "ipc:///run/core", credentials=credentials)
    server = msgspec.structs.replace(
        config.server,
        ssl_keyfile="/etc/key.pem",
        otlp_traces_endpoint="https://user:password@collector:4318/v1/traces?token=geheim#geheim",
    )
    text = config_json(msgspec.structs.replace(config, server=server)).decode()
    told = msgspec.json.decode(text)
    assert told["credentials"]["file_keys"][0]["name"] == "team-a"
    assert told["server"]["ssl_keyfile"] == "/etc/key.pem"
    assert told["server"]["otlp_traces_endpoint"] == "https://collector:4318/v1/traces"
    assert told["shared"]["core_addresses"] == ["ipc:///run/core"]
    assert "tensors" not in told["checkpoint"]
    for secret in (digest, "password", "geheim", base64.b64encode(b"geheim").decode()):
        assert secret not in text


def test_no_setting_is_a_secret_that_nobody_thought_of() -> None:
    """A new field that sounds like one must be left out of records, or be named here as harmless."""
    # Paths, names beside hashes, public keys, and whether browsers may send some.
    harmless = {"ssl_keyfile", "api_key_file", "curve_keys", "client_key", "allow_credentials"}
    harmless |= {"credentials", "file_keys", "fixed_keys"}
    kinds = [
        kind for kind in vars(process_config).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    ]
    names = {name for kind in (ServerConfig, *kinds) for name in kind.__struct_fields__} | {*option_names()}
    words = ("key", "secret", "password", "credential", "auth", "url", "extra")
    suspicious = {name for name in names if any(word in name for word in words)}
    assert suspicious - SECRET_FIELDS == harmless
