"""The benchmarks without HTTP, on a tiny model; and what cannot work."""

import json
from pathlib import Path

import pytest

from pyllm.cli import main
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


ENGINE = ("--device", "cpu", "--kv-cache-memory-bytes", "16MiB", "--no-warm-spares")


def test_throughput_counts_every_token(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = ["--dataset-name", "random", "--random-input-len", "20", "--random-output-len", "4", "--num-prompts", "3"]
    saved = tmp_path / "result.json"
    assert main(["bench", "throughput", model, *ENGINE, *lengths, "--output-json", str(saved)]) == 0
    assert "Tokens: 60 in, 12 out" in capsys.readouterr().out
    result = json.loads(saved.read_text())
    assert (result["num_requests"], result["total_num_tokens"]) == (3, 72)
    assert result["tokens_per_second"] * result["elapsed_time"] == pytest.approx(72)


def test_latency_has_an_entry_for_each_iteration(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    batch = [
        "--input-len",
        "6",
        "--output-len",
        "2",
        "--batch-size",
        "2",
        "--num-iters",
        "3",
        "--num-iters-warmup",
        "1",
    ]
    assert main(["bench", "latency", "--model", model, *ENGINE, *batch, "--output", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["latencies"]) == 3
    assert result["percentiles"]["10"] <= result["percentiles"]["50"] <= result["percentiles"]["99"]


@pytest.mark.parametrize("kind", ["throughput", "latency"])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["/nowhere/model.gguf"], "/nowhere/model.gguf"),
        (["nowhere"], "owner/repo:Q4_K_M"),
        (["--block-size", "17"], "power of two"),
        (["--tensor-parallel-size", "2"], "9"),
        (["--max-num-seqs", "-1"], "max_num_seqs"),
        (["--max-model-len", "9000"], "8192"),
        (["--output", "xml"], "invalid choice: 'xml'"),
        (["--output-len", "0"], "'0' is not a whole number above 0"),
        (["--input-len", "many"], "'many' is not a whole number above 0"),
        (["--num-iter", "3"], "unrecognized arguments: --num-iter"),
    ],
)
def test_wrong_flags_are_usage_errors(
    kind: str, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["bench", kind, *arguments])
    except SystemExit as exit_:  # argparse's own
        code = int(exit_.code or 0)
    error = capsys.readouterr().err
    assert (code, text in error, "Traceback" in error) == (2, True, False), error
