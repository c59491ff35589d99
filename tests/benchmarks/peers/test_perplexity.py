"""Perplexity by our own runner is that of transformers, in whole contexts and in chunks; contexts as llama.cpp cuts."""

import random
import struct
from array import array
from pathlib import Path

import pytest

from benchmarks.peers.perplexity import (
    CONTEXT,
    TEXT,
    cut,
    perplexity,
    runner_logits,
    saved_contexts,
    transformers_logits,
)
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.config.option_reading import engine_config
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.launch.resolve import resolve_config
from tests.tiny_model import write_tiny_model


@pytest.mark.parametrize("chunk", [2048, 100])
def test_runner_and_transformers_agree(tmp_path: Path, chunk: int) -> None:
    folder = write_tiny_model(tmp_path, max_position_embeddings=1024)
    engine, checkpoint = resolve_config(
        engine_config({"model": folder, "dtype": "float32", "device": "cpu", "max_num_batched_tokens": chunk})
    )
    contexts = [random.Random(seed).choices(range(290), k=CONTEXT) for seed in range(2)]
    expected = perplexity(contexts, transformers_logits(checkpoint))
    assert perplexity(contexts, runner_logits(engine, checkpoint)) == pytest.approx(expected, rel=1e-4)


def test_contexts_are_whole_and_in_order() -> None:
    tokenizer = Tokenizer(read_checkpoint("").tokenizer)
    contexts = cut(tokenizer, TEXT.read_text())
    tokens = tokenizer.encode(TEXT.read_text())
    assert len(contexts) >= 10
    assert [token for context in contexts for token in context] == tokens[: len(contexts) * CONTEXT]


def test_saved_contexts(tmp_path: Path) -> None:
    path = tmp_path / "logits"
    path.write_bytes(struct.pack("<8s3i", b"_logits_", 3, 290, 2) + array("i", [1, 2, 3, 4, 5, 6]).tobytes() + b"rest")
    assert saved_contexts(path) == [[1, 2, 3], [4, 5, 6]]
