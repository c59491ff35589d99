"""Three ranks in three processes: the tokens of one rank, a third of its bytes, and every share matters.

The exchange of GPUs is tried with gloo in place of NCCL.
"""

from typing import Any

import pytest
import torch

from pyllm.wire.messages import Sampling
from tests.plans import Planner, Row
from tests.tiny_model import write_tiny_model
from tests.workers.engine import loaded_runner, run, worker_config
from tests.workers.layers.ranks import Steps, run_ranks

NUM_BLOCKS = 16
STAGES = ["joining ranks", "loading weights"]  # torch is there, as in a fork server


def steps() -> Steps:
    """Two sequences, one of them sampled, prefilled in chunks and decoded from what the ranks themselves remember."""
    planner = Planner(NUM_BLOCKS)
    planner.start(0)
    planner.start(1, Sampling(temperature=0.8, top_k=50))
    plans = [
        planner.step(Row(0, [5, 17, 200, 31], ())),
        planner.step(Row(0, [8, 250, 100]), Row(1, [9, 0, 3, 12])),
    ]
    plans += [planner.step(Row(0, [-1]), Row(1, [-1], (0.1 * step,))) for step in range(8)]
    return plans


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    # 290 tokens do not divide by three: the last rank's rows of the vocabulary are padded.
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), tied=False)


@pytest.fixture(scope="module")
def ranks(model: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    rendezvous = f"file://{tmp_path_factory.mktemp('ranks') / 'rendezvous'}"
    configs = [worker_config(model, rank, rendezvous, tensor_parallel_size=3) for rank in range(3)]
    return run_ranks(configs, steps(), NUM_BLOCKS, edited_rank=2)


def test_three_ranks_give_the_tokens_of_one(model: str, ranks: list[dict[str, Any]]) -> None:
    runner = loaded_runner(model, NUM_BLOCKS)
    expected = [run(runner, step) for step in steps()]
    assert len({token for step in expected for token in step}) > 5
    for rank in ranks:
        assert rank["tokens"] == expected
        assert rank["stages"] == STAGES


def test_each_rank_holds_a_third(model: str, ranks: list[dict[str, Any]]) -> None:
    whole = loaded_runner(model, NUM_BLOCKS).call("statistics")
    for rank in ranks:
        assert rank["statistics"]["linear_bytes"] * 3 == whole["linear_bytes"]
        assert rank["statistics"]["kv_cache_bytes"] * 3 == whole["kv_cache_bytes"]
        assert rank["statistics"]["embedding_bytes"] == 2 * 128 * 48 * 4  # 97 rows, packed by 32, and the head's


def test_an_edited_share_of_one_rank_changes_the_output_of_all(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["edited"] != ranks[0]["tokens"]
    assert ranks[0]["edited"] == ranks[1]["edited"] == ranks[2]["edited"]


def test_graphs_hold_every_collective(ranks: list[dict[str, Any]]) -> None:
    """The embedding's and two a layer: small ones in one launch, those of a mixed step not; then logits and tokens."""
    for rank in ranks:
        assert rank["captured"] == rank["tokens"]
        assert rank["replays"] == [16, 16, 2] + [2, 2] * 8  # The first step samples nothing.
        # The largest decode step first, then the smaller one and the mixed one. In one launch gloo gathers.
        bodies = [["_allgather_base_"] * 5] * 2 + [["allreduce_"] * 5]
        found, known = rank["bytes"]
        assert known / 2 < found <= known
        assert rank["collectives"] == [["gather_", "broadcast_"]] * 2 + bodies


def test_sums_are_in_rank_order_and_those_in_one_launch_are_the_same(ranks: list[dict[str, Any]]) -> None:
    first, *others = (torch.tensor(rank["own"]).bfloat16() for rank in ranks)
    for other in others:
        first += other  # Rounds after each addition.
    for rank in ranks:
        for name in ("host", "in order", "one shot"):
            rows, alone = rank["sums"][name]
            assert rows == first.tolist()
            assert alone == first[7:8].tolist()
        torch.testing.assert_close(torch.tensor(rank["sums"]["reduced"][0]), first.float(), atol=0.05, rtol=0.01)
        assert rank["sums"]["reduced"][0] != first.tolist(), "so gloo adds in rank order, and proves nothing of NCCL"


def test_stages_pass_states_on(ranks: list[dict[str, Any]]) -> None:
    expected = [
        [torch.full((2, tokens, 8), float(tokens + stage)).tolist() for tokens in (4, 1, 3, 2, 4)] if stage else []
        for stage in range(3)
    ]
    assert [rank["passed on"] for rank in ranks] == expected


def test_memory_is_shared_by_all_ranks_or_none(ranks: list[dict[str, Any]]) -> None:
    """One that went on alone would wait forever."""
    for rank in ranks:
        expected = {"": True, "has no link": False, "cannot share": False, "reads other numbers": False}
        assert rank["shared"] == expected
