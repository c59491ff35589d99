"""`pyllm check` on this machine: a model, its flags, and what would stop a server."""

import json
import socket
from pathlib import Path

import pytest

from pyllm.cli import main
from tests.tiny_model import write_tiny_model


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    code = main(["check", "--json", "--port", "0", *arguments])
    return code, json.loads(capsys.readouterr().out)


def problems(report: dict[str, object], severity: str) -> str:
    findings = report["findings"]
    assert isinstance(findings, list)
    return "\n".join(finding["problem"] for finding in findings if finding["severity"] == severity)


def test_a_model_that_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny_model(tmp_path)
    code, report = check(capsys, folder, "--device", "cpu", "--max-model-len", "256", "--max-num-seqs", "4")
    assert (code, report["can_run"]) == (0, True)
    model = report["model"]
    assert isinstance(model, dict)
    assert (model["context"], model["max_num_seqs"]) == (256, 4)
    assert model["fits"] == [{"context": 256, "sequences": 4, "most_sequences": 4}]
    assert main(["check", folder, "--port", "0"]) == 0
    assert capsys.readouterr().out.endswith("the model can run here\n")


def test_this_machine_alone(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = check(capsys)
    assert (code, report["model"]) == (0, None)


def test_what_a_server_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    code, report = check(capsys, folder, "--max-model-len", "9000")
    assert (code, report["can_run"], report["model"]) == (1, False, None)
    assert "more than the model's context of 512 tokens" in problems(report, "error")
    strange = write_tiny_model(tmp_path / "strange", hidden_act="sine")
    code, report = check(capsys, strange)
    assert code == 1
    assert "sine" in problems(report, "error")


def test_a_cache_that_is_too_small_for_the_context(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny_model(tmp_path)
    code, report = check(capsys, folder, "--device", "cpu", "--kv-cache-memory-bytes", "64KiB")
    assert code == 0
    assert "requests of more than " in problems(report, "warning")


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, report = check(capsys, "--port", str(taken.getsockname()[1]))
    assert code == 1
    assert "Address already in use" in problems(report, "error")


def test_more_connections_than_files(capsys: pytest.CaptureFixture[str]) -> None:
    _, report = check(capsys, "--connections", "999999999")
    assert "999999999 connections" in problems(report, "warning")
