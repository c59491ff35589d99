"""`pyllm bench serve` as a user gives it, against a scripted server."""

import asyncio
import csv
import json
import signal
import sys
from pathlib import Path

import pytest

from pyllm.cli import main
from tests.bench.conftest import StartServer
from tests.bench.scripted_server import Script, ScriptedServer, scripted_server
from tests.waiting import until

SHORT = ("--num-prompts", "6", "--output-len", "3")


@pytest.fixture
def server(start_server: StartServer) -> ScriptedServer:
    return start_server(Script(ttft=0.002, itl=0.001))


def serve(server: ScriptedServer, *arguments: str) -> int:
    return main(["bench", "serve", "--base-url", server.address, *SHORT, *arguments])


def test_serve_prints_vllms_table(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(server, "--max-concurrency", "2", "--goodput", "ttft:60000", "--metric-percentiles", "50,99") == 0
    table = capsys.readouterr().out
    for line in ("Successful requests: 6", "Total generated tokens: 18", "Peak concurrent requests: 2"):
        assert line in " ".join(table.split())
    for label in ("Request goodput (req/s):", "Mean TTFT (ms):", "P99 TPOT (ms):", "P50 E2EL (ms):"):
        assert label in table


def test_serve_sends_what_it_was_told(start_server: StartServer, capsys: pytest.CaptureFixture[str]) -> None:
    server = start_server(Script(key="secret", models=("first", "second")))
    flags = ["--api-key", "secret", "--backend", "openai-chat", "--temperature", "0", "--top-p", "0.5"]
    flags += ["--extra-body", '{"top_k": 3}']
    assert serve(server, *flags, "--dataset-name", "random", "--random-input-len", "5", "--num-warmups", "0") == 0
    assert len(server.sent) == 6
    for sent in server.sent:
        assert len(sent.prompt.split()) == 5
        others = {"messages", "stream", "stream_options"}
        fields = {name: value for name, value in sent.body.items() if name not in others}
        wanted = {"model": "first", "temperature": 0, "top_p": 0.5, "top_k": 3, "ignore_eos": True, "max_tokens": 3}
        assert fields == wanted
    assert "secret" not in capsys.readouterr().out


def test_the_served_name_goes_before_the_models(start_server: StartServer) -> None:
    server = start_server(Script(models=("chat",)))
    flags = ["--model", "/models/chat", "--served-model-name", "chat", "--ready-check-timeout-sec", "60"]
    assert serve(server, *flags) == 0
    assert {sent.body["model"] for sent in server.sent} == {"chat"}


def test_results_in_each_format(server: ScriptedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save = ["--save-result", "--save-detailed", "--result-dir", str(tmp_path / "new"), "--metadata", "run=1"]
    assert serve(server, "--output", "json", *save) == 0
    printed = json.loads(capsys.readouterr().out)
    (path,) = (tmp_path / "new").iterdir()
    assert path.name.startswith("openai-infqps-scripted-")
    saved = json.loads(path.read_text())
    assert printed.items() <= saved.items()
    assert (saved["completed"], saved["run"], len(saved["ttfts"]), saved["output_lens"]) == (6, "1", 6, [3] * 6)
    assert serve(server, "--output", "csv") == 0
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert row["completed"] == "6"
    assert row.keys() == {name for name, value in printed.items() if not isinstance(value, dict)} - {"run"}


def test_plots(server: ScriptedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(server, "--plot", "--plot-file", str(tmp_path / "plot.png")) == 0
    assert "ITL: share of values up to" in capsys.readouterr().out
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_servers_own_histograms_stand_beside(start_server: StartServer, capsys: pytest.CaptureFixture[str]) -> None:
    server = start_server(Script())

    def metrics() -> str:
        name, number = "vllm:time_to_first_token_seconds", len(server.sent)
        return f'{name}_sum{{engine="0"}} {number * 0.25}\n{name}_count{{engine="0"}} {number}\n'

    server.script.metrics = metrics
    assert serve(server) == 0
    assert "The server's own mean TTFT (ms): 250.00" in " ".join(capsys.readouterr().out.split())


def fail_first(server: ScriptedServer, number: int) -> None:
    """Of the requests that are no warm-up the first ones fail."""
    first = iter([True] * number)
    server.script.fail = lambda prompt: "busy" if not prompt.startswith("Warm-up") and next(first, False) else ""


@pytest.mark.parametrize("number", [1, 6])
def test_failures_are_counted_by_name_and_one_is_an_error(
    number: int, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_first(server, number)
    assert serve(server, "--disable-tqdm") == 1
    printed = capsys.readouterr()
    assert f"{number} x HTTP 429: too many requests" in printed.out
    said = f"pyllm: {number} of 6 requests failed; the first one: HTTP 429: too many requests"
    assert printed.err.splitlines() == [said]


def test_a_failed_request_is_in_the_saved_result(server: ScriptedServer, tmp_path: Path) -> None:
    fail_first(server, 2)
    assert serve(server, "--save-result", "--result-dir", str(tmp_path)) == 1
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["failures"] == {"HTTP 429: too many requests": 2}


def test_the_knee_is_where_the_targets_break(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--find-knee", "--ramp-up-start-rps", "4000", "--ramp-up-end-rps", "8000", "--output", "json"]
    assert serve(server, *flags, "--goodput", "ttft:60000") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["knee_request_rate"], [step["request_rate"] for step in found["steps"]]) == (8000.0, [4000.0, 8000.0])
    assert serve(server, *flags, "--goodput", "ttft:0") == 0
    assert json.loads(capsys.readouterr().out)["knee_request_rate"] is None


def test_requests_that_fail_at_too_high_a_rate_do_not_fail_the_search(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--find-knee", "--ramp-up-start-rps", "4000", "--ramp-up-end-rps", "8000", "--goodput", "ttft:60000"]
    fail_first(server, 3)
    assert serve(server, *flags) == 0
    server.script.fail = lambda prompt: "" if prompt.startswith("Warm-up") else "break"
    assert serve(server, *flags) == 1
    assert "requests failed; the first one: the answer broke off after 1 chunks" in capsys.readouterr().err


async def test_ctrl_c_prints_what_was_measured() -> None:
    async with scripted_server() as server:
        server.script.fail = lambda prompt: "hang" if len(server.sent) > 4 else ""
        # A shell lets its background jobs ignore SIGINT, and the tests may be one.
        command = ["env", "--default-signal=INT", sys.executable, "-m", "pyllm", "bench", "serve", *SHORT]
        command += ["--base-url", server.address, "--max-concurrency", "1"]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        await until(lambda: len(server.sent) == 5, pause=0.01)
        process.send_signal(signal.SIGINT)
        out, err = (text.decode() for text in await process.communicate())
    assert process.returncode == 130
    assert "Successful requests: 3 Failed requests: 0 Unfinished requests: 3" in " ".join(out.split())
    assert "Traceback" not in err


def test_a_server_that_cannot_be_measured_is_one_line(
    start_server: StartServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    closed, empty = start_server(Script(key="secret")), start_server(Script(models=()))
    for arguments, text in (
        (["--base-url", "http://127.0.0.1:1"], "cannot reach http://127.0.0.1:1"),
        (["--base-url", "http://nowhere.invalid"], "cannot reach http://nowhere.invalid"),
        (["--base-url", "http://a..b"], "cannot reach http://a..b"),
        (["--base-url", "http://a..b", "--model", "m"], "no host can be called 'a..b'"),
        (
            ["--base-url", closed.address],
            "401: this key is unknown (give the server's key by --api-key or OPENAI_API_KEY)",
        ),
        (["--base-url", closed.address, "--model", "scripted"], "give the server's key by --api-key"),
        (["--base-url", closed.address, "--api-key", "secret", "--model", "other"], "lists the models scripted"),
        (["--base-url", closed.address, "--api-key", "secret", "--endpoint", "/v2"], "no route /v2"),
        (["--base-url", empty.address], "lists no model: give --model"),
    ):
        assert main(["bench", "serve", *arguments]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("pyllm: ")
        assert text in line
