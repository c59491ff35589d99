"""Quantised Hugging Face folders through the whole engine, beside the model of their dequantised weights."""

from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from pyllm import LLM, RequestOutput, SamplingParams
from tests import in_process
from tests.tiers import full
from tests.tiny_model import write_tiny_model
from tests.tiny_mxfp4 import write_mxfp4
from tests.tiny_quantised import SIZES, VARIANTS, write_quantised

PROMPTS = [[(seed * 97 + 41 * place * place + 7 * place) % 256 for place in range(9)] for seed in range(32)]
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=2)
# Nearer than this the rounding of inputs to 8 bits may decide between the two best tokens.
MARGIN = 0.5


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), **SIZES)


Answer = list[tuple[int, float]]


def answers(model: str, ranks: int = 1, **options: Any) -> list[Answer]:
    """The tokens after each prompt, each with the distance between the two best."""
    options = {"device": "cpu", "max_model_len": 64, **options}
    if ranks == 1:
        with in_process.engine(model, **options) as engine:
            return [read(output) for output in in_process.generate(engine, PROMPTS, GREEDY)]
    with LLM(model, tensor_parallel_size=ranks, **options) as llm:
        return [read(output) for output in llm.generate(PROMPTS, GREEDY)]


def read(output: RequestOutput) -> Answer:
    (completion,) = output.outputs
    assert completion.logprobs is not None
    best = [sorted((found.logprob for found in at.values()), reverse=True) for at in completion.logprobs]
    margins = [first - second for first, second, *_ in best]
    return list(zip(completion.token_ids, margins, strict=True))


@pytest.mark.parametrize(
    ("name", "quantization", "ranks"),
    [
        ("awq", "auto", 2),
        ("gptq in act-order", "auto", 1),
        ("int8", "auto", 1),
        ("fp8 of blocks", "auto", 1),
        ("packed asymmetric", "int8", 1),
        full("int8", "auto", 2),
        full("packed asymmetric", "int8", 2),
    ],
)
def test_tokens_are_those_of_the_dequantised_model(
    tmp_path: Path, tiny: str, name: str, quantization: str, ranks: int
) -> None:
    variant, _ = VARIANTS[name]
    floats = tmp_path / "floats"
    folder = write_quantised(tiny, tmp_path / "quantised", variant, floats)
    check(folder, floats, ranks, quantization=quantization)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("ranks", "options"), [(1, {}), (2, {"enable_expert_parallel": True}), full(2, {})], ids=["1", "whole", "2"]
)
def test_tokens_of_mxfp4_are_those_of_the_dequantised_model(
    tmp_path: Path, ranks: int, options: dict[str, Any]
) -> None:
    from tests.families.tiny_families import write_tiny_family

    source = write_tiny_family(tmp_path / "tiny", "gpt-oss")
    check(write_mxfp4(source, tmp_path / "quantised", tmp_path / "floats"), tmp_path / "floats", ranks, **options)


def check(folder: str, floats: Path, ranks: int, **options: Any) -> None:
    expected = answers(str(floats), dtype="float32")
    assert answers(folder, dtype="float32", quantization="none") == expected
    found = answers(folder, ranks, **options)
    num_clear = 0
    for tokens, other in zip(expected, found, strict=True):
        clear = list(takewhile(lambda token: token[1] > MARGIN, tokens))
        assert [token for token, _ in other[: len(clear)]] == [token for token, _ in clear]
        num_clear += len(clear)
    assert num_clear >= 20
