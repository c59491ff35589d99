"""The benchmarks without HTTP, on a tiny model."""

import json
from pathlib import Path

import pytest

from pyllm.cli import main

ENGINE = ("--device", "cpu", "--kv-cache-memory-bytes", "16MiB", "--no-warm-spares")


def test_throughput_counts_every_token(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = ["--dataset-name", "random", "--random-input-len", "20", "--random-output-len", "4", "--num-prompts", "3"]
    saved = tmp_path / "result.json"
    flags = [*lengths, "--seed", "3", "--compilation-config", "3", "--output-json", str(saved)]
    assert main(["bench", "throughput", model, *ENGINE, *flags]) == 0
    said = capsys.readouterr()
    assert "Tokens: 60 in, 12 out" in said.out
    assert "note: --compilation-config: pyllm compiles nothing" in said.err
    result = json.loads(saved.read_text())
    assert (result["num_requests"], result["total_num_tokens"]) == (3, 72)
    assert result["tokens_per_second"] * result["elapsed_time"] == pytest.approx(72)


def test_latency_has_an_entry_for_each_iteration(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    batch = ["--input-len", "6", "--output-len", "2", "--batch-size", "2"]
    batch += ["--num-iters", "3", "--num-iters-warmup", "1"]
    assert main(["bench", "latency", "--model", model, *ENGINE, *batch, "--output", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["latencies"]) == 3
    assert result["percentiles"]["10"] <= result["percentiles"]["50"] <= result["percentiles"]["99"]
