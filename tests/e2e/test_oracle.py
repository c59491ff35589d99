"""float32 greedy tokens equal those of `transformers` on the same weights, however the engine is set up.

The two best logits never lie closer than `MARGIN`: below it the order of float32 additions, which no two
implementations share, may decide.
"""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from pyllm import LLM, LLMEngine, SamplingParams
from pyllm.checkpoint.reader import read_checkpoint
from tests import in_process
from tests.e2e.stretches import STRETCHES, stretches
from tests.tiers import full

MARGIN = 0.01
NEW_TOKENS = 64

Tokens = list[int]


@pytest.fixture(scope="module")
def every_prompt() -> list[Tokens]:
    return stretches()


@pytest.fixture(scope="module")
def prompts() -> list[Tokens]:
    """A quarter of them, of 5 to 500 tokens, two with a common prefix; `make oracle` takes all."""
    return stretches()[1::4]


@pytest.fixture(scope="module")
def oracle_of_all(every_prompt: list[Tokens]) -> list[Tokens]:
    return generated(every_prompt, NEW_TOKENS)


@pytest.fixture(scope="module")
def oracle(prompts: list[Tokens]) -> list[Tokens]:
    return generated(prompts, NEW_TOKENS // 2)


def generated(prompts: list[Tokens], new_tokens: int) -> list[Tokens]:
    """What transformers generates after each prompt; prompts of one length run as a batch."""
    path = Path(read_checkpoint("").files[0])
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    answers: dict[int, Tokens] = {}
    for length in sorted({len(prompt) for prompt in prompts}):
        numbers = [number for number, prompt in enumerate(prompts) if len(prompt) == length]
        tokens, margin = greedy(model, torch.tensor([prompts[number] for number in numbers]), new_tokens)
        assert margin >= MARGIN, f"prompts of {length} tokens: the two best logits come as close as {margin:.4f}"
        answers.update(zip(numbers, tokens, strict=True))
    return [answers[number] for number in range(len(prompts))]


@torch.inference_mode()
def greedy(model: torch.nn.Module, inputs: torch.Tensor, new_tokens: int) -> tuple[list[Tokens], float]:
    """The tokens that follow inputs [batch, length], and the smallest distance between two best logits."""
    generated, margin, cache = [], float("inf"), None
    for _ in range(new_tokens):
        result = model(inputs, past_key_values=cache, use_cache=True)
        cache = result.past_key_values
        best = result.logits[:, -1].topk(2)
        margin = min(margin, float((best.values[:, 0] - best.values[:, 1]).min()))
        inputs = best.indices[:, :1]
        generated.append(inputs)
    return torch.cat(generated, 1).tolist(), margin


def check(
    prompts: list[Tokens],
    oracle: list[Tokens],
    *,
    together: bool,
    caching: bool,
    chunk: int,
    ranks: int,
    new_tokens: int,
) -> None:
    options: dict[str, Any] = {"enable_prefix_caching": caching, "max_num_batched_tokens": chunk, "dtype": "float32"}
    params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
    batches = [prompts] if together else [[prompt] for prompt in prompts]
    if ranks == 1:
        with closing(LLMEngine(**options)) as engine:
            outputs = [output for batch in batches for output in in_process.generate(engine, batch, params)]
            stats = engine.stats()
    else:
        with LLM(tensor_parallel_size=ranks, **options) as llm:
            outputs = [output for batch in batches for output in llm.generate(batch, params)]
            stats = llm.stats()
    assert in_process.tokens(outputs) == [tokens[:new_tokens] for tokens in oracle]
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
    [
        (True, True, 64),
        (True, False, 2048),
        (False, False, 64),
        full(False, True, 2048),
    ],
)
def test_tokens_equal_the_oracle(
    prompts: list[Tokens], oracle: list[Tokens], together: bool, caching: bool, chunk: int
) -> None:
    new_tokens = NEW_TOKENS // 2 if together else 16  # one prompt after the other takes long
    check(prompts, oracle, together=together, caching=caching, chunk=chunk, ranks=1, new_tokens=new_tokens)


@pytest.mark.full
@pytest.mark.parametrize(("together", "caching", "chunk"), [(True, True, 64), (False, False, 2048)])
def test_three_ranks_equal_the_oracle(
    prompts: list[Tokens], oracle: list[Tokens], together: bool, caching: bool, chunk: int
) -> None:
    check(prompts, oracle, together=together, caching=caching, chunk=chunk, ranks=3, new_tokens=16)


@pytest.mark.oracle
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("chunk", [64, 2048])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_whole_matrix(
    every_prompt: list[Tokens], oracle_of_all: list[Tokens], together: bool, caching: bool, chunk: int, ranks: int
) -> None:
    check(
        every_prompt,
        oracle_of_all,
        together=together,
        caching=caching,
        chunk=chunk,
        ranks=ranks,
        new_tokens=NEW_TOKENS,
    )
