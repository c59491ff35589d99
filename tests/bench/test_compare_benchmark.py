"""`pyllm bench compare` as a user gives it, of two scripted servers and of two results."""

import json
from pathlib import Path

import pytest

from pyllm.cli import main
from tests.bench.conftest import StartServer
from tests.bench.scripted_server import Script


def test_two_servers_are_compared_in_turn(start_server: StartServer, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = start_server(Script()), start_server(Script(ttft=0.05))
    flags = ["--rounds", "2", "--num-prompts", "3", "--output-len", "2", "--output", "json"]
    assert main(["bench", "compare", a.address, b.address, *flags]) == 0
    ratios = {row["figure"]: row for row in json.loads(capsys.readouterr().out)}
    assert ratios["mean_ttft_ms"]["ratio"] > 1 > ratios["request_throughput"]["ratio"]
    assert ratios["mean_ttft_ms"]["low"] <= ratios["mean_ttft_ms"]["ratio"] <= ratios["mean_ttft_ms"]["high"]
    assert sorted(sent.prompt for sent in a.sent) == sorted(sent.prompt for sent in b.sent)
    rounds = [{sent.prompt for sent in a.sent[1:4]}, {sent.prompt for sent in a.sent[4:]}]
    assert rounds[0].isdisjoint(rounds[1])
    assert max(sent.received for sent in b.sent[1:4]) < min(sent.received for sent in a.sent[4:])


def test_a_failed_request_is_said_and_is_exit_code_1(
    start_server: StartServer, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = start_server(Script()), start_server(Script())
    fails = iter([False, True])
    b.script.fail = lambda prompt: "busy" if not prompt.startswith("Warm-up") and next(fails, False) else ""
    flags = ["--rounds", "2", "--num-prompts", "3", "--output-len", "2"]
    assert main(["bench", "compare", a.address, b.address, *flags]) == 1
    printed = capsys.readouterr()
    assert "request_throughput" in printed.out
    assert "pyllm: 1 of 12 requests failed; the first one: HTTP 429: too many requests" in printed.err


def test_two_results_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for name, factor in (("a", 1.0), ("b", 2.0)):
        ttfts = [factor * value for value in (0.1, 0.2, 0.3, 0.4)]
        detail = {
            "ttfts": ttfts,
            "itls": [[0.01], [0.02], [0.01], [0.03]],
            "output_lens": [2] * 4,
            "input_lens": [9] * 4,
        }
        (tmp_path / name).write_text(json.dumps({"request_throughput": 3.0 / factor, "mean_ttft_ms": 250, **detail}))
        paths.append(str(tmp_path / name))
    assert main(["bench", "compare", *paths, "--output", "json"]) == 0
    rows = {row["figure"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["mean_ttft_ms"]["low"] == pytest.approx(2)  # the same requests, each twice as late
    assert rows["mean_tpot_ms"]["ratio"] == 1
    assert (rows["request_throughput"]["ratio"], rows["request_throughput"]["low"]) == (0.5, None)
    assert main(["bench", "compare", *paths]) == 0
    assert "not shown" in capsys.readouterr().out
