"""`pyllm batch` with a model of its own that is killed, and its end on a running server."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.e2e.server import DEADLINE, Server, until
from tests.tiny_model import write_tiny_model

NUM_REQUESTS = 8


def batch(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pyllm", "batch", *arguments]


def test_a_batch_goes_on_where_a_kill_left_it(tmp_path: Path, server: Server) -> None:
    requests, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    body = {"model": server.model(), "prompt": "Once upon a time", "max_tokens": 32, "temperature": 0}
    rows = [
        {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": {**body, "min_tokens": 32}}
        for number in range(NUM_REQUESTS - 1)
    ]
    refused = {"custom_id": "refused", "method": "POST", "url": "/v1/chat/completions", "body": body}
    requests.write_text("".join(json.dumps(row) + "\n" for row in [refused, *rows]))
    files = ("-i", str(requests), "-o", str(answers))
    first = subprocess.Popen(
        batch(*files, "--max-num-seqs", "1", "--max-concurrency", "1", "--no-warm-spares"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    until(lambda: first.poll() is not None or (answers.exists() and answers.read_bytes().count(b"\n") > 2), "answers")
    family = psutil.Process(first.pid).children(recursive=True)
    os.kill(first.pid, signal.SIGKILL)
    output = first.communicate(timeout=DEADLINE)[0].decode()
    assert first.returncode == -signal.SIGKILL, output
    assert psutil.wait_procs(family, timeout=DEADLINE)[1] == []
    before = answers.read_bytes()
    assert 2 < before.count(b"\n") < NUM_REQUESTS

    last = subprocess.run(
        batch(*files, "--base-url", f"{server.address}/v1"), capture_output=True, text=True, check=False
    )
    assert last.returncode == 1, last.stderr  # One was refused.
    assert f"{answers} has {NUM_REQUESTS} answers, 1 of them errors" in last.stdout
    assert answers.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    found = {row["custom_id"]: row["response"] for row in map(json.loads, answers.read_text().splitlines())}
    assert sorted(found) == sorted(["refused", *(f"r{number}" for number in range(NUM_REQUESTS - 1))])
    assert answers.read_bytes().count(b"\n") == NUM_REQUESTS
    assert found.pop("refused")["status_code"] == 400
    # Both runs gave the same.
    assert len({response["body"]["choices"][0]["text"] for response in found.values()}) == 1


def test_chats_with_a_model_that_cannot_end_before_it_is_loaded(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path / "tiny"))
    (folder / "tokenizer_config.json").write_text("{}")
    requests = tmp_path / "in.jsonl"
    row = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}}
    requests.write_text(json.dumps(row))
    command = batch("-i", str(requests), "-o", str(tmp_path / "out.jsonl"), str(folder))
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert run.returncode == 2, run.stderr
    assert "nothing was sent, as 1 of 1 requests have messages: tiny has no chat template" in run.stderr
    assert "pyllm::core-0" not in run.stderr  # The core logs what it has loaded.
