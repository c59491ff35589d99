"""All-reduces between cards, by size: with NCCL, in one launch, and in rank order as with `--batch-invariant`.

They show the size from which `pyllm.workers.layers.one_shot_all_reduce` should leave tensors to NCCL. Knows no model.
"""

import multiprocessing
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.timing import CudaTimer, Timer
from pyllm.workers.layers.nccl_ranks import NcclRanks
from pyllm.workers.layers.one_shot_all_reduce import OneShotAllReduce
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.layers.rank_rendezvous import Place

Figure = dict[str, Any]

NAME = "gpu.all_reduce"
RANKS = (2, 4, 8)
# The hidden states of a token take 8 KiB in a model of 8 B parameters, and 16 KiB in one of 70 B.
BYTES = tuple(kib << 10 for kib in (8, 32, 128, 256, 512, 1024, 4096, 16384))


def all_reduces(num_cards: int) -> Iterator[Figure]:
    """A figure for each size and each number of ranks up to the number of cards."""
    if num_cards < RANKS[0]:
        yield {"name": NAME, "value": "not measured", "why": f"it takes {RANKS[0]} cards, and torch sees {num_cards}"}
    for ranks in RANKS:
        if ranks <= num_cards:
            yield from _between(ranks)


def by_size(groups: dict[str, RankGroup], timer: Timer, device: torch.device, sizes: Sequence[int]) -> Iterator[Figure]:
    """The microseconds of each group's sum; every rank must call this. The group `in_rank_order` is the reference."""
    for size in sizes:
        figure: Figure = {"name": NAME, "bytes": size}
        zeros = torch.zeros(size // 2, dtype=torch.bfloat16, device=device)
        numbers = torch.randn(size // 2, device=device).to(torch.bfloat16)
        expected = groups["in_rank_order"].sum(numbers.clone())
        for name, group in groups.items():
            figure |= {"ranks": group.size, name: round(timer(partial(group.sum, zeros)) * 1e6, 2)}
        if one_shot := groups.get("one_shot"):
            figure["ok"] = torch.equal(one_shot.sum(numbers), expected)
        yield figure


def _between(ranks: int) -> list[Figure]:
    """The figures with one process a card."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_measure, args=(rank, ranks, Path(folder) / "rendezvous", theirs))
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        theirs.close()
        try:
            figures: list[Figure] = ours.recv()  # EOFError: no rank is left.
        finally:
            for process in processes:
                process.join(timeout=10)
                process.kill()
    return figures


def _measure(rank: int, ranks: int, rendezvous: Path, connection: Connection) -> None:
    device = torch.device("cuda", rank)
    # In rank order, as it would otherwise join an all-reduce with the limit that is measured here.
    place = Place(rank, ranks)
    in_rank_order = RankGroup.join(place, device, f"file://{rendezvous}", batch_invariant=True)
    groups = {
        "in_rank_order": in_rank_order,
        "nccl": RankGroup(rank, ranks, NcclRanks(place, device, in_rank_order=False)),
    }
    if one_shot := OneShotAllReduce.join(rank, ranks, device, limit=2 * BYTES[-1]):
        groups["one_shot"] = RankGroup(rank, ranks, NcclRanks(place, device, in_rank_order=False, one_shot=one_shot))
    figures = list(by_size(groups, CudaTimer(device), device, BYTES))
    if rank == 0:
        connection.send(figures)
    torch.distributed.destroy_process_group()
