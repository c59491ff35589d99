"""The runner against transformers on the same weights, and the meaning of every section of a plan."""

from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from pyllm_kernels import AttentionMetadata, select
from pyllm_kernels.ops.paged_attention import paged_attention
from tokenizers import Tokenizer
from torch import Tensor

from pyllm.checkpoint.cache import weights_digest
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError, ProtocolError
from pyllm.wire.messages import Step
from pyllm.workers.attention_backends import AttentionBackend
from pyllm.workers.kv.kv_cache import CachedLayer
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.model_runner import ModelRunner
from pyllm.workers.step.attention_batch import AttentionBatch
from tests.plans import Planner, Row, encode
from tests.tiny_model import write_tiny_model
from tests.workers.continuations import NUM_TOKENS, PROMPTS
from tests.workers.engine import greedy, loaded_runner, offer_backend, run, worker_config

BLOCK_BYTES = 2 * 2 * 16 * 3 * 16 * 4  # keys and values, layers, tokens, heads, head_dim, float32


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


def test_a_known_token_and_the_last_sampled_one_are_the_same(runner: ModelRunner, expected: list[list[int]]) -> None:
    planner = Planner()
    planner.start(5)
    run(runner, planner.step(Row(5, PROMPTS[0])))
    assert run(runner, planner.step(Row(5, [expected[0][0]]))) == [expected[0][1]]
    assert run(runner, planner.step(Row(5, [-1]))) == [expected[0][2]]


def test_a_budget_that_was_raised_needs_no_graph(model: str, expected: list[list[int]]) -> None:
    runner = loaded_runner(model, max_num_batched_tokens=8, max_num_seqs=2)
    assert len(PROMPTS[2]) > 8
    assert greedy(runner, Planner(), 0, PROMPTS[2], 3) == expected[2][:3]


def torch_backend(device: torch.device) -> AttentionBackend:
    """Another package's attention, which a CUDA graph could hold."""
    return AttentionBackend(AttentionBatch.metadata, select("reference", device)[paged_attention], in_graphs=True)


def test_a_cpus_graph_holds_no_attention_but_rusts(
    model: str, expected: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_backend(tmp_path, monkeypatch, f"{__name__}:torch_backend")
    runner = loaded_runner(model, attention_backend="theirs")
    assert greedy(runner, Planner(), 0, PROMPTS[1], len(expected[1])) == expected[1]


def test_loading_tells_how_far_it_is(model: str) -> None:
    told: list[float] = []
    ModelRunner(worker_config(model), RankGroup()).load(told.append)
    assert told == sorted(told)
    assert (0 < told[0] < 1, told[-1]) == (True, 1.0)


def test_statistics_count_bytes(runner: ModelRunner) -> None:
    # Outputs are packed by 32: 48 of them take the room of 64, and 290 rows that of 320.
    linear = 2 * 4 * (48 * (6 + 3 + 3) * 16 + 6 * 16 * 64 + 48 * 2 * 96 + 96 * 64)
    assert runner.call("statistics") == {
        "linear_bytes": linear,
        "embedding_bytes": 320 * 48 * 4,
        "kv_cache_bytes": 64 * BLOCK_BYTES,
        "state_bytes": 0,
        "host_kv_cache_bytes": 0,
        "host_state_bytes": 0,
    }


def test_calls_are_those_it_knows(runner: ModelRunner) -> None:
    assert isinstance(runner.call("instruction_set"), str)
    with pytest.raises(ProtocolError, match="no method 'load', only allocate, begin_weights"):
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

    def before_attention(self, layer: int) -> None:
        self.seen.append(("before", layer))

    def after_attention(self, layer: int, output: Tensor, cached: CachedLayer, metadata: AttentionMetadata) -> Tensor:
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
