"""float32 greedy tokens equal those of `transformers` on the same weights, however the engine is set up.

The two best logits never lie closer than `MARGIN`: below it the order of float32 additions, which no two
implementations share, may decide.
"""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from pyllm import LLM, SamplingParams
from tests import in_process
from tests.e2e.stretches import STRETCHES, stretches
from tests.tiers import full

pytestmark = pytest.mark.torch
MARGIN = 0.01

Tokens = list[int]
Check = Callable[[Tokens, Tokens], None]


@pytest.fixture(scope="module")
def check_greedy() -> Check:
    """Checks that transformers, too, generates these tokens after a prompt: each is the best after all before it."""
    import torch

    from tests.e2e.embedded_oracle import embedded_oracle

    model = embedded_oracle()

    @functools.cache
    @torch.inference_mode()
    def check(prompt: tuple[int, ...], tokens: tuple[int, ...]) -> None:
        logits = model(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]  # [tokens, vocabulary]
        best = logits.topk(2)
        assert best.indices[:, 0].tolist() == list(tokens)
        margin = float((best.values[:, 0] - best.values[:, 1]).min())
        assert margin >= MARGIN, f"a prompt of {len(prompt)} tokens: the two best logits come as close as {margin:.4f}"

    return lambda prompt, tokens: check(tuple(prompt), tuple(tokens))


def check(
    check_greedy: Check,
    prompts: list[Tokens],
    *,
    together: bool,
    caching: bool,
    chunk: int,
    ranks: int = 1,
    new_tokens: int = 16,
) -> None:
    options: dict[str, Any] = {"enable_prefix_caching": caching, "max_num_batched_tokens": chunk, "dtype": "float32"}
    params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
    batches = [prompts] if together else [[prompt] for prompt in prompts]
    if ranks == 1:
        with in_process.engine(**options) as engine:
            outputs = [output for batch in batches for output in in_process.generate(engine, batch, params)]
            stats = engine.stats()
    else:
        with LLM(tensor_parallel_size=ranks, **options) as llm:
            outputs = [output for batch in batches for output in llm.generate(batch, params)]
            stats = llm.stats()
    for prompt, tokens in zip(prompts, in_process.tokens(outputs), strict=True):
        assert len(tokens) == new_tokens
        check_greedy(prompt, tokens)
    cached = sum(output.num_cached_tokens for output in outputs)
    assert (cached > 0) == caching
    computed = sum(len(prompt) + new_tokens - 1 for prompt in prompts)
    rejected = stats["num_drafts"] - stats["num_accepted_drafts"]  # of the one that is left alone
    assert stats["num_computed_tokens"] == computed - cached + rejected


def test_there_are_20_prompts_of_5_to_600_tokens() -> None:
    lengths = [length for length, _ in STRETCHES]
    assert (len(lengths), min(lengths), max(lengths)) == (20, 5, 600)


# Every pair of settings occurs in one of these.
@pytest.mark.parametrize(
    ("together", "caching", "chunk"),
    [(True, True, 64), full(True, False, 2048), full(False, False, 64), full(False, True, 2048)],
)
def test_tokens_equal_the_oracle(check_greedy: Check, together: bool, caching: bool, chunk: int) -> None:
    """A part of the prompts of 5 to 500 tokens, two with a common prefix; `make oracle` takes all."""
    check(check_greedy, stretches()[1::4], together=together, caching=caching, chunk=chunk)


@pytest.mark.full
@pytest.mark.parametrize(("together", "caching", "chunk"), [(True, True, 64), (False, False, 2048)])
def test_three_ranks_equal_the_oracle(check_greedy: Check, together: bool, caching: bool, chunk: int) -> None:
    check(check_greedy, stretches()[1::4], together=together, caching=caching, chunk=chunk, ranks=3)


@pytest.mark.oracle
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("chunk", [64, 2048])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_whole_matrix(check_greedy: Check, together: bool, caching: bool, chunk: int, ranks: int) -> None:
    options = {"together": together, "caching": caching, "chunk": chunk, "ranks": ranks}
    check(check_greedy, stretches(), new_tokens=64, **options)
