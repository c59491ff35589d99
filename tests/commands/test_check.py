"""`pyllm check` on this machine: a model, its flags, and what would stop a server."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pyllm.cli import main
from tests.certificates import self_signed
from tests.hub_server import HubServer
from tests.tiny_gguf import write_tiny_gguf
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


def test_a_model_without_a_chat_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(write_tiny_model(tmp_path / "tiny"))
    (folder / "tokenizer_config.json").write_text("{}")
    _, report = check(capsys, str(folder), "--device", "cpu")
    assert "tiny has no chat template, so requests with messages are refused" in problems(report, "warning")
    assert main(["check", str(folder), "--device", "cpu", "--port", "0"]) == 0
    assert "Give one by --chat-template FILE" in " ".join(capsys.readouterr().out.split())
    _, report = check(capsys, str(folder), "--device", "cpu", "--chat-template", "{{ messages }}")
    assert "chat template" not in problems(report, "warning")


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


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_a_model_of_the_hub_is_checked_by_its_headers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    if kind == "gguf":
        write_tiny_gguf(write_tiny_model(tmp_path / "tiny"), folder / "tiny-F32.gguf")
    else:
        write_tiny_model(folder, hidden_size=480, intermediate_size=960)
    with HubServer() as server:
        server.add("me/tiny", folder)
        environment = os.environ | {
            "HF_ENDPOINT": server.endpoint,
            "HF_HOME": str(tmp_path / "hf"),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }
        command = [sys.executable, "-m", "pyllm", "check", "--json", "--port", "0", "--device", "cpu", "me/tiny"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        ranges = [asked for method, path, asked in server.requests if "/resolve/" in path and asked]
        command[-1] = "me/other"
        strange = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["model"]["name"] == "me/tiny"
    _, here = check(capsys, "--device", "cpu", str(next(folder.glob("*.gguf"), folder)))
    same = ("weights_bytes", "parameters", "kv_bytes_per_token", "context", "architecture", "table_bytes")
    model = here["model"]
    assert isinstance(model, dict)
    assert {name: report["model"][name] for name in same} == {name: model[name] for name in same}
    assert "me/tiny is not on this machine: a server downloads" in problems(report, "note")
    # Of the weights only the beginning was asked for, and nothing of them stays.
    assert ranges == ["bytes=0-33554431" if kind == "gguf" else "bytes=0-262143"]
    left = [
        path.name for path in tmp_path.rglob("*") if path.is_file() and path.parent not in {folder, tmp_path / "tiny"}
    ]
    assert [name for name in left if name.endswith((".checkpoint", ".json", ".safetensors", ".gguf"))] == []
    assert (strange.returncode, strange.stderr.count("\n")) == (2, 1)
    assert "there is no model me/other" in strange.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("--api-key-file /nowhere/keys.json", "cannot read the API keys in /nowhere/keys.json"),
        ("--ssl-certfile /nowhere/c.pem", "cannot use the certificate /nowhere/c.pem"),
        ("--ssl-certfile CERT --ssl-keyfile /nowhere/k.pem", "cannot use the TLS key /nowhere/k.pem"),
        ("--uds /nowhere/http.sock", "cannot listen on /nowhere/http.sock"),
        ("--middleware nowhere.Middleware", "cannot import the middleware nowhere.Middleware"),
        ("--log-config-file /nowhere/log.json", "cannot read log_config_file /nowhere/log.json"),
        ("--chat-template /nowhere/t.jinja", "cannot read the chat template /nowhere/t.jinja"),
        ("--chat-template {%if%}", "the chat template does not compile"),
        ("--generation-config /nowhere", "/nowhere"),
    ],
)
@pytest.mark.parametrize("has_model", [False, True])
def test_what_a_server_would_end_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], has_model: bool, arguments: str, problem: str
) -> None:
    cert, _ = self_signed(tmp_path)
    model = [write_tiny_model(tmp_path / "tiny"), "--device", "cpu"] if has_model else []
    code, report = check(capsys, *model, *arguments.replace("CERT", cert).split())
    assert (code, report["can_run"]) == (1, False)
    assert problem in problems(report, "error")


def test_files_that_are_there_are_no_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cert, key = self_signed(tmp_path)
    (tmp_path / "t.jinja").write_text("{{ messages }}")
    path = tmp_path / "http.sock"
    files = ["--ssl-certfile", cert, "--ssl-keyfile", key, "--chat-template", str(tmp_path / "t.jinja")]
    code, _ = check(capsys, *files, "--uds", str(path), "--middleware", "tests.frontend.edge.middlewares.Stamp")
    assert code == 0
    assert not path.exists()


@pytest.mark.parametrize("template", ["", "{% if %}"])
def test_a_models_own_template_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], template: str
) -> None:
    folder = Path(write_tiny_model(tmp_path / "tiny"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    code, report = check(capsys, str(folder), "--device", "cpu")
    if template:
        assert code == 1
        assert "the chat template does not compile" in problems(report, "error")
    else:
        assert code == 0
        assert "tiny has no chat template" in problems(report, "warning")
