"""The runner against transformers on the same weights, and the meaning of every section of a plan."""

from itertools import count, pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from pyllm_kernels import select
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaForCausalLM

from pyllm.checkpoint.cache import weights_digest
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError, ProtocolError
from pyllm.wire.messages import Sampling, Step
from pyllm.workers.attention_backends import AttentionBackend
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.model_runner import MIN_CPU_KV_CACHE_BYTES, ModelRunner
from pyllm.workers.step.attention_batch import AttentionBatch
from pyllm.workers.step.forward_context import ForwardContext
from tests.plans import Planner, Row, encode
from tests.tiny_model import write_tiny_model
from tests.workers.engine import greedy, loaded_runner, offer_backend, run, worker_config

PROMPTS = [
    [5, 17, 200, 31, 8, 8, 250, 100, 3, 77, 41, 9, 160, 22, 61, 12, 33, 2, 90, 140],
    [9, 9, 3],
    [(7 * position * position + 3) % 256 for position in range(45)],
]
NUM_TOKENS = 12
BLOCK_BYTES = 2 * 2 * 16 * 3 * 16 * 4  # keys and values, layers, tokens, heads, head_dim, float32
DRAWN = Sampling(temperature=1.0)
MANY = tuple((number + 0.5) / 1000 for number in range(1000))  # What these draw shows the whole distribution.
FLAT = Sampling(temperature=1e9)  # Every token is equally likely: the uniform number alone decides.


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def runner(model: str) -> ModelRunner:
    return loaded_runner(model)


@pytest.fixture(scope="module")
def expected(model: str) -> list[list[int]]:
    """Greedy continuations by transformers; two best logits that lie closer than the margin would be a coin toss."""
    oracle = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    continuations = []
    for prompt in PROMPTS:
        tokens = list(prompt)
        with torch.inference_mode():
            for _ in range(NUM_TOKENS):
                best = oracle(torch.tensor([tokens])).logits[0, -1].topk(2)
                assert best.values[0] - best.values[1] > 1e-3, "choose another prompt"
                tokens.append(int(best.indices[0]))
        continuations.append(tokens[len(prompt) :])
    return continuations


def test_the_embedded_model_knows_the_capital_of_france() -> None:
    runner = loaded_runner("")
    tokenizer = Tokenizer.from_file(read_checkpoint().tokenizer.path)
    prompt = tokenizer.encode("The capital of France is").ids
    assert tokenizer.decode(greedy(runner, Planner(), 3, prompt, 1)) == " Paris"


def test_sequences_one_by_one(runner: ModelRunner, expected: list[list[int]]) -> None:
    planner = Planner()
    for prompt, tokens in zip(PROMPTS, expected, strict=True):
        assert greedy(runner, planner, 0, prompt, NUM_TOKENS) == tokens


def test_sequences_all_together(runner: ModelRunner, expected: list[list[int]]) -> None:
    planner = Planner()
    for slot in range(3):
        planner.start(slot)
    columns = [run(runner, planner.step(*(Row(slot, prompt) for slot, prompt in enumerate(PROMPTS))))]
    while len(columns) < NUM_TOKENS:
        columns.append(run(runner, planner.step(*(Row(slot, [-1]) for slot in range(3)))))
    assert [list(tokens) for tokens in zip(*columns, strict=True)] == expected


def test_a_prompt_in_chunks_beside_a_decoding_row(runner: ModelRunner, expected: list[list[int]]) -> None:
    planner = Planner()
    planner.start(0)
    planner.start(1)
    short = run(runner, planner.step(Row(0, PROMPTS[1])))
    for start in range(0, 40, 10):
        short += run(runner, planner.step(Row(1, PROMPTS[2][start : start + 10], uniforms=()), Row(0, [-1])))
    both = run(runner, planner.step(Row(0, [-1]), Row(1, PROMPTS[2][40:])))
    assert [*short, both[0]] == expected[1][:6]
    assert both[1] == expected[2][0]
    assert run(runner, planner.step(Row(1, [-1]), Row(0, [-1]))) == [expected[2][1], expected[1][6]]


def test_a_step_may_sample_nothing(runner: ModelRunner) -> None:
    planner = Planner()
    planner.start(0)
    step, frame = planner.step(Row(0, PROMPTS[0], uniforms=()))
    sampled = runner.run(step, frame)
    assert (sampled.step, sampled.starts, sampled.tokens) == (step.step, bytes(8), b"")


def test_a_known_token_and_the_last_sampled_one_are_the_same(runner: ModelRunner, expected: list[list[int]]) -> None:
    planner = Planner()
    planner.start(5)
    run(runner, planner.step(Row(5, PROMPTS[0])))
    assert run(runner, planner.step(Row(5, [expected[0][0]]))) == [expected[0][1]]
    assert run(runner, planner.step(Row(5, [-1]))) == [expected[0][2]]


def test_the_uniform_number_chooses_and_a_row_may_choose_several_times(runner: ModelRunner) -> None:
    planner = Planner()
    planner.start(0, FLAT)
    planner.start(1)
    uniforms = (0.0001, 0.5001, 0.9999)
    step, frame = planner.step(Row(0, PROMPTS[1], uniforms), Row(1, PROMPTS[1], ()), Row(1, PROMPTS[0], (0.9,)))
    sampled = runner.run(step, frame)
    tokens = torch.frombuffer(bytearray(sampled.tokens), dtype=torch.int32).tolist()
    assert tokens[:3] == [0, 145, 289]
    assert torch.frombuffer(bytearray(sampled.starts), dtype=torch.int32).tolist() == [0, 3, 3, 4]


def test_a_fork_goes_on_with_its_parents_parameters_tokens_and_cache(
    runner: ModelRunner, expected: list[list[int]]
) -> None:
    planner = Planner()
    planner.start(0)
    first = run(runner, planner.step(Row(0, PROMPTS[0])))
    planner.fork(0, 6)
    # The parent leaves the path; the fork, in a copied block, does not notice.
    assert run(runner, planner.step(Row(0, [77]), Row(6, [-1])))[1] == expected[0][1]
    assert run(runner, planner.step(Row(6, [-1]), Row(0, [-1])))[0] == expected[0][2]
    assert first == expected[0][:1]


def test_slots_are_copied_before_they_are_initialised(runner: ModelRunner, expected: list[list[int]]) -> None:
    planner = Planner()
    planner.start(0)
    run(runner, planner.step(Row(0, PROMPTS[0])))
    planner.fork(0, 1)
    planner.start(0, FLAT)
    assert run(runner, planner.step(Row(0, PROMPTS[1], (0.9999,)), Row(1, [-1]))) == [289, expected[0][1]]


def test_a_budget_that_was_raised_needs_no_graph(model: str, expected: list[list[int]]) -> None:
    runner = loaded_runner(model, max_num_batched_tokens=8, max_num_seqs=2)
    assert len(PROMPTS[2]) > 8
    assert greedy(runner, Planner(), 0, PROMPTS[2], 3) == expected[2][:3]


def torch_backend(device: torch.device) -> AttentionBackend:
    """Another package's attention, which a CUDA graph could hold."""
    return AttentionBackend(AttentionBatch.metadata, select("reference", device).paged_attention, in_graphs=True)


def test_a_cpus_graph_holds_no_attention_but_rusts(
    model: str, expected: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_backend(tmp_path, monkeypatch, f"{__name__}:torch_backend")
    runner = loaded_runner(model, attention_backend="theirs")
    assert greedy(runner, Planner(), 0, PROMPTS[1], len(expected[1])) == expected[1]


def test_what_was_swapped_out_goes_on_as_if_it_had_stayed(model: str, expected: list[list[int]]) -> None:
    prompt, tokens = PROMPTS[2], expected[2]
    stays = loaded_runner(model, num_blocks=5)
    planner = Planner(5)
    planner.start(0, DRAWN)
    run(stays, planner.step(Row(0, prompt)))
    undisturbed = [run(stays, planner.step(Row(0, [token], MANY))) for token in tokens[:3]]
    assert all(len(set(drawn)) > 100 for drawn in undisturbed)

    # Of five blocks the first sequence needs three, and the second four: it overwrites what the first has left behind.
    moves = loaded_runner(model, num_blocks=5, num_host_blocks=7)
    planner = Planner(5, num_host_blocks=7)
    planner.start(0, DRAWN)
    run(moves, planner.step(Row(0, prompt)))
    blocks = set(planner.tables[0])
    first = planner.swap_out(0)
    planner.start(0)
    run(moves, planner.step(Row(0, prompt[::-1] + prompt[:10])))
    assert blocks < set(planner.tables[0])
    # The two change places within one step, and a step later once more.
    second = planner.swap_out(0)
    planner.start(5, DRAWN)
    planner.swap_in(5, *first)
    assert set(planner.tables[5]) != blocks
    assert run(moves, planner.step(Row(5, tokens[:1], MANY))) == undisturbed[0]
    first = planner.swap_out(5)
    planner.start(1)
    planner.swap_in(1, *second)
    run(moves, planner.step(Row(1, [9])))
    planner.start(1)
    planner.start(2, DRAWN)
    planner.swap_in(2, *first)
    for token, drawn in zip(tokens[1:3], undisturbed[1:], strict=True):
        assert run(moves, planner.step(Row(2, [token], MANY))) == drawn


def test_a_swapped_sequence_samples_as_before(model: str, expected: list[list[int]]) -> None:
    runner = loaded_runner(model, num_host_blocks=4)
    planner = Planner(num_host_blocks=4)
    tokens = greedy(runner, planner, 0, PROMPTS[0], 3)
    swapped = planner.swap_out(0)
    assert greedy(runner, planner, 0, PROMPTS[2], NUM_TOKENS) == expected[2]
    planner.start(3)
    planner.swap_in(3, *swapped)
    tokens += run(runner, planner.step(Row(3, tokens[-1:])))
    while len(tokens) < NUM_TOKENS:
        tokens += run(runner, planner.step(Row(3, [-1])))
    assert tokens == expected[0]


def test_blocks_are_copied_once_they_are_back(model: str, expected: list[list[int]]) -> None:
    runner = loaded_runner(model, num_blocks=4, num_host_blocks=2)
    planner = Planner(4, num_host_blocks=2)
    tokens = greedy(runner, planner, 0, PROMPTS[0], 3)
    swapped = planner.swap_out(0)
    assert greedy(runner, planner, 0, PROMPTS[2], 1) == expected[2][:1]
    planner.start(0)
    planner.start(3)
    planner.swap_in(3, *swapped)
    planner.unshare(3)
    assert run(runner, planner.step(Row(3, tokens[-1:]))) == [expected[0][3]]


def test_loading_tells_how_far_it_is(model: str) -> None:
    told: list[float] = []
    ModelRunner(worker_config(model), RankGroup()).load(told.append)
    assert told == sorted(told)
    assert (0 < told[0] < 1, told[-1]) == (True, 1.0)


def test_kv_caches_are_as_large_as_they_are_told(model: str) -> None:
    runner = ModelRunner(worker_config(model), RankGroup())
    assert runner.num_blocks() == MIN_CPU_KV_CACHE_BYTES // BLOCK_BYTES
    runner = ModelRunner(worker_config(model, kv_cache_memory_bytes="1MiB", dtype="bfloat16"), RankGroup())
    assert runner.num_blocks() == (1 << 20) // (BLOCK_BYTES // 2)


def test_host_pools_are_as_large_as_they_are_told(model: str) -> None:
    clock = count()  # Each round takes a second by it, whatever is moved.
    runner = ModelRunner(worker_config(model, kv_offloading_size="1MiB"), RankGroup(), lambda: float(next(clock)))
    runner.load()
    assert runner.call("num_host_blocks") == (1 << 20) // BLOCK_BYTES
    runner.call("allocate", (64, 5))
    assert runner.call("statistics")["host_kv_cache_bytes"] == 5 * BLOCK_BYTES
    assert runner.call("swap_seconds") == 1 / 5


def test_without_a_host_pool_nothing_is_swapped(runner: ModelRunner) -> None:
    assert runner.call("num_host_blocks") == 0
    assert runner.call("swap_seconds") == 0.0


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("1k", f"no room for a block of {BLOCK_BYTES:,} bytes on each of 1 rank"),
        ("999TiB", "more than the .* has:"),
    ],
)
def test_a_host_pool_that_cannot_be_is_a_configuration_error(model: str, size: str, message: str) -> None:
    runner = ModelRunner(worker_config(model, kv_offloading_size=size), RankGroup())
    with pytest.raises(ConfigError, match=message):
        runner.load()


def test_statistics_count_bytes(runner: ModelRunner) -> None:
    # Outputs are packed by 32: 48 of them take the room of 64, and 290 rows that of 320.
    linear = 2 * 4 * (48 * (6 + 3 + 3) * 16 + 6 * 16 * 64 + 48 * 2 * 96 + 96 * 64)
    assert runner.call("statistics") == {
        "linear_bytes": linear,
        "embedding_bytes": 320 * 48 * 4,
        "kv_cache_bytes": 64 * BLOCK_BYTES,
        "host_kv_cache_bytes": 0,
    }


def test_calls_are_those_it_knows(runner: ModelRunner) -> None:
    assert isinstance(runner.call("instruction_set"), str)
    with pytest.raises(ProtocolError, match="no method 'load', only allocate, finish_transfers, forget_host_blocks"):
        runner.call("load")
    with pytest.raises(ProtocolError, match="64 blocks is allocated already"):
        runner.call("allocate", (64,))


def test_weights_that_were_replaced_since_the_core_knew_them_get_no_connector(tmp_path: Path) -> None:
    extra = {"store": "tests.kv_transfer.dict_store:open_dict", "store_options": {"name": "replaced"}}
    transfer = {"kv_connector": "StoreConnector", "kv_connector_extra_config": extra}
    runner = loaded_runner(write_tiny_model(tmp_path), kv_transfer_config=transfer)
    (file,) = map(Path, read_checkpoint(str(tmp_path)).files)
    weights = weights_digest([str(file)])
    runner.call("register_kv_caches", (bytes(32).hex(), weights))
    runner.call("finish_transfers")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1  # Behind what the checkpoint's fingerprint covers.
    (tmp_path / "new").write_bytes(content)
    (tmp_path / "new").replace(file)
    with pytest.raises(ConfigError, match="are not those that this engine was started with"):
        runner.call("register_kv_caches", (bytes(32).hex(), weights))


def test_the_largest_step_leaves_no_trace(runner: ModelRunner, expected: list[list[int]]) -> None:
    planner = Planner()
    planner.start(0)
    run(runner, planner.step(Row(0, PROMPTS[0])))
    runner.run_largest_step()
    assert run(runner, planner.step(Row(0, [-1]))) == [expected[0][1]]


@pytest.mark.parametrize(("backend", "seconds"), [("cpu", 1 / 8), ("reference", 0.0)])
def test_tokens_are_timed_before_any_is_asked_for_and_leave_no_trace(
    model: str, expected: list[list[int]], backend: str, seconds: float
) -> None:
    clock = count()  # Each step takes a second by it.
    config = worker_config(model, kernel_backend=backend)
    runner = ModelRunner(config, RankGroup(), lambda: float(next(clock)))
    runner.load()
    runner.call("allocate", (64,))
    assert runner.call("token_seconds") == seconds
    planner = Planner()
    planner.start(0)
    run(runner, planner.step(Row(0, PROMPTS[0])))
    assert runner.call("token_seconds") == seconds
    assert run(runner, planner.step(Row(0, [-1]))) == [expected[0][1]]


class WatchingHook:
    """Sees each layer before and after, and may turn attention's output to nothing."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.seen: list[tuple[str, int]] = []

    def before_attention(self, layer: int, context: ForwardContext) -> None:
        self.seen.append(("before", layer))

    def after_attention(self, layer: int, output: Tensor, context: ForwardContext) -> Tensor:
        self.seen.append(("after", layer))
        return output * self.factor


@pytest.mark.parametrize("factor", [1.0, 0.0])
def test_every_layers_attention_passes_by_its_hooks(
    runner: ModelRunner, expected: list[list[int]], factor: float
) -> None:
    hook = WatchingHook(factor)
    runner.add_attention_hook(hook)
    tokens = greedy(runner, Planner(), 0, PROMPTS[0], 2)
    assert hook.seen == [("before", 0), ("after", 0), ("before", 1), ("after", 1)] * 2
    assert (tokens == expected[0][:2]) is (factor == 1.0)


def test_attention_may_come_from_another_backend(model: str, expected: list[list[int]]) -> None:
    runner = loaded_runner(model, attention_backend="sdpa")
    assert greedy(runner, Planner(), 0, PROMPTS[0], NUM_TOKENS) == expected[0]


def test_a_step_before_the_kv_cache_is_refused(model: str) -> None:
    runner = ModelRunner(worker_config(model), RankGroup())
    planner = Planner()
    planner.start(0)
    with pytest.raises(ProtocolError, match="before the KV cache was allocated"):
        runner.run(*planner.step(Row(0, [1])))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"swaps": [0, 1, 2]}, "no host pool: kv_offloading_size is 0"),
        ({"slot_inits": [0], "sampling_starts": [0, 2], "sampling": [0xC1, 0xFF]}, "slot 0 do not decode"),
    ],
)
def test_a_plan_that_cannot_be_done_is_refused(runner: ModelRunner, sections: dict[str, Any], message: str) -> None:
    counts, frame = encode(sections)
    with pytest.raises(ProtocolError, match=message):
        runner.run(Step(0, counts), frame)


def test_an_unknown_kernel_backend_is_a_configuration_error(model: str) -> None:
    config = worker_config(model)
    device = msgspec.structs.replace(config.engine.device, kernel_backend="fast")
    engine = msgspec.structs.replace(config.engine, device=device)
    with pytest.raises(ConfigError, match="kernel_backend fast: unknown kernel backend"):
        ModelRunner(msgspec.structs.replace(config, engine=engine), RankGroup())


def test_log_probabilities_are_those_of_transformers(model: str, runner: ModelRunner) -> None:
    prompt = PROMPTS[0]
    oracle = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        expected = oracle(torch.tensor([prompt])).logits[0].log_softmax(-1)
    planner = Planner()
    planner.start(0, Sampling(temperature=0.0, logprobs=3, prompt_logprobs=2), (prompt, []))
    told = []
    for chunk in (Row(0, prompt[:7], ()), Row(0, prompt[7:])):
        sampled = runner.run(*planner.step(chunk))
        assert sampled.logprobs is not None
        starts, ids, ranks = (
            np.frombuffer(column, np.int32)
            for column in (sampled.logprobs.starts, sampled.logprobs.ids, sampled.logprobs.ranks)
        )
        values = np.frombuffer(sampled.logprobs.values, np.float32)
        told += [(ids[a:b].tolist(), values[a:b], ranks[a:b].tolist()) for a, b in pairwise(starts.tolist())]
    assert len(told) == len(prompt)
    for position, (ids, values, ranks) in enumerate(told):
        row = expected[position]
        token = prompt[position + 1] if position + 1 < len(prompt) else int(row.argmax())
        num_top = 2 if position + 1 < len(prompt) else 3
        assert ids == [token, *row.topk(num_top).indices.tolist()]
        assert ranks == [int((row >= row[token]).sum()), *range(1, num_top + 1)]
        torch.testing.assert_close(torch.from_numpy(values.copy()), row[ids], atol=1e-4, rtol=1e-4)
