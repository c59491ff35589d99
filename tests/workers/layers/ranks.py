"""Ranks of one model in processes of their own, for `test_rank_group.py`: what is imported there."""

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from pyllm_kernels import select
from torch import Tensor

from pyllm.config.process_config import WorkerConfig
from pyllm.wire.messages import Step
from pyllm.workers.cuda_graphs import CaptureBudget
from pyllm.workers.devices.torch_device import TorchDevice
from pyllm.workers.forward_pass import Limits
from pyllm.workers.layers.nccl_ranks import NcclRanks
from pyllm.workers.layers.one_shot_all_reduce import OneShotAllReduce
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.layers.rank_rendezvous import Place
from pyllm.workers.sampling.sampler import sample_on_device
from pyllm.workers.sampling.sampling_slots import SamplingSlots
from pyllm.workers.sampling.token_sampler import Draw, TokenSampler
from pyllm.workers.sampling_graphs import SamplingGraphs, graph_bytes
from pyllm.workers.step.batch import PlanBuffer
from pyllm.workers.worker_process import load
from tests.workers.compile_steps import make_forward
from tests.workers.engine import run
from tests.workers.fake_capture import FakeCapture

Steps = list[tuple[Step, bytes]]

CPU = TorchDevice(torch.device("cpu"))
LIMITS = Limits(max_num_seqs=2, max_num_batched_tokens=16, max_model_len=512)
ONE_SHOT_BYTES = 1024


def run_ranks(configs: list[WorkerConfig], steps: Steps, num_blocks: int, edited_rank: int) -> list[dict[str, Any]]:
    """The answers of each rank to the same steps: as loaded; with one rank's last linear layer halved; by graphs.

    And sums of numbers of its own.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # One process imports torch, and the ranks are its forks.
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
        last = list(runner.model.matrices())[-1].data.view(np.float32)
        last *= np.float32(0.5)
    answer["edited"] = [run(runner, step) for step in steps]
    place = Place(config.rank, config.engine.parallel.tensor_parallel_size)
    rendezvous = f"{config.rendezvous}-of-torch"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=place.rank, world_size=place.size)
    with torch.inference_mode():
        groups = _groups(place) | {"host": runner._placement.group}
        connection.send(answer | _captured(config, steps) | _sums(place, groups) | _shared(place) | _passed_on(place))
    torch.distributed.destroy_process_group()


def _groups(place: Place) -> dict[str, RankGroup]:
    """Groups of the ranks that torch has joined, with gloo in place of NCCL: small tensors in one launch or not."""
    in_order = _group(place)

    def add_up(part: Tensor, out: Tensor) -> None:
        out.copy_(in_order.sum(part))

    one_shot = OneShotAllReduce(torch.empty(ONE_SHOT_BYTES, dtype=torch.uint8), add_up)
    return {
        "in order": in_order,
        "reduced": _group(place, in_rank_order=False),
        "one shot": _group(place, in_rank_order=False, one_shot=one_shot),
    }


def _group(place: Place, **options: Any) -> RankGroup:
    return RankGroup(place.rank, place.size, NcclRanks(place, CPU.device, **options))


def _captured(config: WorkerConfig, steps: Steps) -> dict[str, Any]:
    """The tokens of the same steps by graphs that hold all ops and collectives, as on GPUs."""
    place = Place(config.rank, config.engine.parallel.tensor_parallel_size)
    group, capture, limits = _groups(place)["one shot"], FakeCapture(), LIMITS
    kernels, spec = capture.launching(select("reference", "cpu")), config.checkpoint.spec
    forward, _, slots = make_forward(config.engine.model.model, kernels, "float32", limits, group=group)
    sampler = TokenSampler(SamplingSlots(limits.max_num_seqs, spec.vocab_size, None), CPU)
    graphs = SamplingGraphs(
        forward.head,
        capture.launched(sample_on_device),
        slots,
        sampler,
        max_num_seqs=limits.max_num_seqs,
        hidden_size=spec.hidden_size,
        dtype="float32",
        group=group,
    )
    budget = CaptureBudget(capture, lambda: 0.0, group, CPU)
    graphs.capture(capture, budget)
    forward.capture_steps(capture, budget)
    plans, tokens = PlanBuffer(CPU), []
    for step, frame in steps:
        batch = plans.load(step.counts, frame)
        slots.apply(batch)
        hidden = forward.hidden(batch)
        sampler.follow(batch)
        draw = graphs.draw(step.step, batch, hidden) if len(batch.host.logits_rows) else Draw(step.step, batch)
        assert draw is not None
        tokens.append(draw.tokens.wait().tolist())
    known = graph_bytes(limits.max_num_seqs, spec.hidden_size, spec.vocab_size, "float32", group)
    return {
        "captured": tokens,
        "replays": capture.replays,
        "collectives": capture.collectives,
        "bytes": (capture.num_bytes[0], known - limits.max_num_seqs * spec.hidden_size * 4),
    }


def _sums(place: Place, groups: dict[str, RankGroup]) -> dict[str, Any]:
    """Sums of many rows, and of one of them alone, by each group's name."""
    own = torch.randn((30, 16), generator=torch.Generator().manual_seed(place.rank)).bfloat16()
    found = {name: [group.sum(part.clone()).tolist() for part in (own, own[7:8])] for name, group in groups.items()}
    return {"own": own.tolist(), "sums": found}


def _passed_on(place: Place) -> dict[str, Any]:
    """States of more steps than there are buffers, as each rank, a stage here, gets them; it passes on one more."""
    ranks, found = NcclRanks(Place(place.rank, 1, place.size), CPU.device), []
    ranks.allocate_messages(2, 2 * 4 * 8 * 2)
    for tokens in (4, 1, 3, 2, 4):
        states = torch.full((2, 4, 8), float(tokens)).bfloat16()[:, :tokens]
        if place.rank > 0:
            ranks.receive(states)
            found.append(states.tolist())
        if place.rank + 1 < place.size:
            ranks.send(states + 1)
    torch.distributed.barrier()  # No rank may give its buffers up, or leave, before the next one has received all.
    return {"passed on": found}


def _shared(place: Place) -> dict[str, Any]:
    """Whether memory is shared, by what is wrong with rank 1."""
    in_order = _group(place)

    def outcome(wrong: str) -> bool:
        wrong = wrong if place.rank == 1 else ""

        def add_up(part: Tensor, out: Tensor) -> None:
            out.copy_(in_order.sum(part)).add_(wrong == "reads other numbers")

        def share() -> OneShotAllReduce:
            if wrong == "cannot share":
                raise RuntimeError(wrong)
            return OneShotAllReduce(torch.empty(1 << 13, dtype=torch.uint8), add_up)

        obstacle = wrong if wrong == "has no link" else ""
        return OneShotAllReduce.agreed(obstacle, share, place.rank, place.size, CPU.device) is not None

    return {"shared": {wrong: outcome(wrong) for wrong in ("", "has no link", "cannot share", "reads other numbers")}}
