"""Ranks of one model in processes of their own, for `test_rank_group.py`: what `spawn` imports there."""

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

import torch
from pyllm_kernels import select
from torch import Tensor

from pyllm.config.process_config import WorkerConfig
from pyllm.wire.messages import Step
from pyllm.workers.cuda_graphs import CaptureBudget
from pyllm.workers.forward_pass import Limits
from pyllm.workers.layers.one_shot_all_reduce import OneShotAllReduce
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.step.batch import PlanBuffer
from pyllm.workers.worker_process import load
from tests.workers.compile_steps import make_forward
from tests.workers.engine import run
from tests.workers.fake_capture import FakeCapture

Steps = list[tuple[Step, bytes]]

CPU = torch.device("cpu")
LIMITS = Limits(max_num_seqs=2, max_num_batched_tokens=16, max_model_len=512)
ONE_SHOT_BYTES = 1024


def run_ranks(configs: list[WorkerConfig], steps: Steps, num_blocks: int, edited_rank: int) -> list[dict[str, Any]]:
    """What each rank answers to the same steps: as loaded, then with one rank's last linear layer halved; by graphs.

    And sums of numbers of its own.
    """
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in configs]
    processes = [
        context.Process(
            target=_run_rank, args=(config, steps, num_blocks, config.rank == edited_rank, ours), daemon=True
        )
        for config, (_, ours) in zip(configs, pipes, strict=True)
    ]
    for process in processes:
        process.start()
    for _, ours in pipes:
        ours.close()
    try:
        return [theirs.recv() for theirs, _ in pipes]
    finally:
        for process in processes:
            process.join(timeout=30)
            process.kill()


def _run_rank(config: WorkerConfig, steps: Steps, num_blocks: int, edited: bool, connection: Connection) -> None:
    stages: list[str] = []
    runner = load(config, stages.append)
    runner.call("allocate", (num_blocks, 0))
    answer = {"stages": stages, "statistics": runner.call("statistics")}
    answer["tokens"] = [run(runner, step) for step in steps]
    if edited:
        with torch.inference_mode():
            list(runner.model.matrices())[-1].data.view(torch.float32).mul_(0.5)
    answer["edited"] = [run(runner, step) for step in steps]
    with torch.inference_mode():
        connection.send(answer | _forwards(config, steps) | _sums(config.rank))
    torch.distributed.destroy_process_group()


def _groups(rank: int) -> dict[str, RankGroup]:
    """Groups of the ranks that have joined, which add up as CPUs and as GPUs do, small tensors in one launch or not."""
    size = torch.distributed.get_world_size()
    in_order = RankGroup(rank, size)

    def add_up(part: Tensor, out: Tensor) -> None:
        out.copy_(in_order.sum(part))

    one_shot = OneShotAllReduce(torch.empty(ONE_SHOT_BYTES, dtype=torch.uint8), add_up)
    return {
        "in order": in_order,
        "reduced": RankGroup(rank, size, in_rank_order=False),
        "one shot": RankGroup(rank, size, in_rank_order=False, one_shot=one_shot),
    }


def _forwards(config: WorkerConfig, steps: Steps) -> dict[str, Any]:
    """Greedy tokens of the same steps op by op, and by graphs that hold all ops and collectives, as on GPUs."""
    group, capture = _groups(config.rank)["one shot"], FakeCapture()
    kernels = select("reference", CPU)
    answer: dict[str, Any] = {}
    for name, ops in (("eager", kernels), ("captured", capture.launching(kernels))):
        forward, _, slots = make_forward(config.engine.model.model, ops, torch.float32, LIMITS, group=group)
        if name == "captured":
            forward.capture_steps(capture, lambda: CaptureBudget(capture, lambda: 0.0, group, CPU))
        plans, answer[name] = PlanBuffer(CPU), []
        for step, frame in steps:
            batch = plans.load(step.counts, frame)
            slots.apply(batch)
            logits = forward.logits(forward.hidden(batch), batch.device.logits_rows)
            rows = len(batch.host.logits_rows)
            tokens = torch.zeros(rows, dtype=torch.int32) if logits is None else logits.argmax(-1).int()
            slots.remember(batch, group.broadcast(tokens))
            answer[name].append(tokens.tolist())
    return answer | {"replays": capture.replays, "collectives": capture.collectives}


def _sums(rank: int) -> dict[str, Any]:
    """Sums of many rows, and of one of them alone, by each group's name."""
    own = torch.randn((30, 16), generator=torch.Generator().manual_seed(rank)).bfloat16()
    found = {
        name: [group.sum(part.clone()).tolist() for part in (own, own[7:8])] for name, group in _groups(rank).items()
    }
    return {"own": own.tolist(), "sums": found}
