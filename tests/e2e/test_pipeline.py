"""Pipeline stages in processes of their own: the tokens of one process, whichever rank dies meanwhile."""

import asyncio
from typing import Any

import pytest

from pyllm import LLM, SamplingParams, StructuredOutputsParams
from tests.e2e.kill_everywhere import OPTIONS
from tests.e2e.killing_core import Trigger, killing_server
from tests.e2e.kills import Tally, kill_at_plan, twins_of, with_stop_string
from tests.tiers import full
from tests.tiny_model import write_tiny_model

# Five layers: two stages, and three, have different numbers of them. Few blocks, so that sequences are preempted.
SIZES = {"layers": 5, "heads": 4, "kv_heads": 2}
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "max_num_batched_tokens": 64,
    "expected_growth": 0.0,
    "watermark": 0.0,
    "warm_spares": False,
}
PROMPTS = [
    [(29 * position * position + 7 * number) % 256 for position in range(5 + 9 * number)] for number in range(16)
]
FREE: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True}
KINDS = [
    SamplingParams(temperature=0, prompt_logprobs=1, **FREE),
    SamplingParams(temperature=1, seed=11, top_p=0.95, logprobs=2, **FREE),
    SamplingParams(temperature=1, seed=12, n=2, presence_penalty=0.8, **FREE),
    SamplingParams(
        temperature=1, seed=13, structured_outputs=StructuredOutputsParams(regex="[a-f]{9}(xyz|uvw)[0-9]{6}")
    ),
]
Answers = list[Any]
NUM_BLOCKS = 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), **SIZES)


def answers(model: str, **options: Any) -> tuple[Answers, dict[str, int]]:
    """What each request gets among the others; then one alone, and embeddings. There are about as many blocks."""
    stages, ranks = options.get("pipeline_parallel_size", 1), options.get("tensor_parallel_size", 1)
    layers, width = -(-SIZES["layers"] // stages), 4 if options["dtype"] == "float32" else 2
    size = NUM_BLOCKS * 2 * layers * 16 * SIZES["kv_heads"] // ranks * 16 * width
    with LLM(model, **SETTINGS, kv_cache_memory_bytes=size, **options) as llm:
        params = [KINDS[number % len(KINDS)] for number in range(len(PROMPTS))]
        outputs = llm.generate(PROMPTS, params)
        found: Answers = [
            [(sample.token_ids, sample.logprobs) for sample in output.outputs] + [output.prompt_logprobs]
            for output in outputs
        ]
        alone = llm.generate([PROMPTS[0] * 4], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
        found += [alone[0].outputs[0].token_ids, [output.outputs.embedding for output in llm.embed(PROMPTS[:3])]]
        return found, llm.stats()


@pytest.fixture(scope="module")
def of_one_process(model: str) -> Answers:
    found, stats = answers(model, dtype="float32")
    assert stats["num_preemptions"] > 0
    return found


@pytest.mark.parametrize(("stages", "ranks"), [(2, 1), *(full(*each) for each in ((2, 2), (3, 1)))])
def test_stages_give_the_tokens_of_one_process(model: str, of_one_process: Answers, stages: int, ranks: int) -> None:
    options = {"pipeline_parallel_size": stages, "tensor_parallel_size": ranks}
    found, stats = answers(model, dtype="float32", **options)
    tokens = [_tokens(answer) for answer in found] if ranks > 1 else found
    # Sums over two ranks are in another order, which the last bits of log-probabilities show.
    assert tokens == ([_tokens(answer) for answer in of_one_process] if ranks > 1 else of_one_process)
    assert stats["num_preemptions"] > 0


def test_hidden_states_are_handed_on_bit_by_bit(model: str) -> None:
    options: dict[str, Any] = {"dtype": "bfloat16", "quantization": "int8", "kv_offloading_size": "2MiB"}
    expected, _ = answers(model, **options)
    found, stats = answers(model, pipeline_parallel_size=2, **options)
    assert found == expected
    assert stats["num_swapped"] > 0


@pytest.mark.full
async def test_a_rank_of_any_stage_may_die() -> None:
    tally, trigger = Tally(), Trigger()
    async with killing_server(trigger, pipeline_parallel_size=2, warm_spares=False, **OPTIONS) as address:
        requests = await asyncio.to_thread(with_stop_string, address, 16)
        twins = await asyncio.to_thread(twins_of, address, requests)
        for rank in range(2):
            run = await asyncio.to_thread(kill_at_plan, address, trigger, requests, 20, 1, rank)
            tally.add(requests, twins, run)
    assert tally.is_flawless, tally.record("ranks of stages")
    assert tally.kills == 2
    assert tally.counted > 0


def _tokens(answer: Any) -> Any:
    """Of an answer what no last bit of a sum changes: embeddings are left out."""
    if isinstance(answer[0], int):
        return answer
    return [sample[0] for sample in answer if isinstance(sample, tuple)]
