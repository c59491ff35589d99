"""The benchmark of sparse attention, on a model of nothing: what it must find where all blocks are read."""

from pathlib import Path

import pyllm_kernels
import pytest

from benchmarks.engine import sparse_plot
from benchmarks.engine.sparse_attention import TOP_K, figures
from tests.tiny_model import write_tiny_model


def test_all_blocks_hold_all_of_the_attention(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", layers=3, max_position_embeddings=1024)
    try:
        records = list(figures(model, 600))
        only_speed = list(figures(model, 600, only_speed=True))
    finally:
        pyllm_kernels.set_num_threads(1)
    recall = {(record["kind"], record["top_k"]): record for record in records if record["name"].endswith("recall")}
    speeds = [
        (record["name"], record["kind"], record["top_k"])
        for record in records
        if record["name"] == "sparse_attention.tokens_per_s"
    ]
    assert len(speeds) == 1 + 2 * len(TOP_K)
    perplexity = {(record["kind"], record["top_k"]): record for record in records if record["name"].endswith("ty")}
    choices = [(record["name"], record["kind"], record["top_k"], record["context"]) for record in only_speed]
    assert choices == [(name, kind, top_k, 600) for name, kind, top_k in speeds]
    assert len(recall) == len(perplexity) == 2 * len(TOP_K)
    for kind in ("quest", "mean"):
        shares = [recall[kind, top_k]["value"] for top_k in TOP_K]
        assert 0 < shares[0] < shares[1] < shares[2]
        assert shares == sorted(shares)
        # Of 62 blocks at most: 600 tokens, and 384 of the output.
        assert recall[kind, 64]["worst"] == pytest.approx(1, abs=1e-4)
        assert perplexity[kind, 64]["value"] == perplexity[kind, 64]["dense"] != perplexity[kind, 8]["value"]
    drawn = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for path in drawn:
        sparse_plot.draw(records, path)
    assert drawn[0].read_bytes() == drawn[1].read_bytes()
    assert b"tokens/s" in drawn[0].read_bytes()
