"""Ranks of one model in processes of their own, for `test_rank_group.py`: what `spawn` imports there."""

import multiprocessing
from multiprocessing.connection import Connection

import torch

from pyllm.config.process_config import WorkerConfig
from pyllm.wire.messages import Step
from pyllm.workers.worker_process import load
from tests.workers.engine import run

Steps = list[tuple[Step, bytes]]


def run_ranks(
    configs: list[WorkerConfig], steps: Steps, num_blocks: int, edited_rank: int
) -> list[dict[str, list[int]]]:
    """What each rank answers to the same steps, first as loaded, then with one rank's last linear layer halved."""
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
    connection.send(answer)
    torch.distributed.destroy_process_group()
