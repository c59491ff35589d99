"""Times the tiles near those of `attention_tuning.py`, for a card whose row of that table is a guess.

Prints the results, and changes no file.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from pyllm_kernels.cards import card_of
from pyllm_kernels.gpu.paged_attention.attention_decode import decode_attention
from pyllm_kernels.gpu.paged_attention.attention_prefill import prefill_attention
from pyllm_kernels.gpu.paged_attention.attention_tasks import make_tasks
from pyllm_kernels.gpu.paged_attention.attention_tuning import DecodeTile, PrefillTile, decode_tile, prefill_tile
from triton.runtime.errors import OutOfResources

from benchmarks.gpu.batches import paged_batch
from benchmarks.gpu.figures import DECODES, Bench, attention_shape

PREFILL_LENGTH = 8192


def candidates() -> tuple[list[PrefillTile], list[DecodeTile]]:
    """The tiles to try; those that do not fit the card are skipped."""
    prefills = [PrefillTile(*sizes) for sizes in itertools.product((64, 128), (32, 64, 128), (4, 8), (3, 4, 5, 7))]
    decodes = [
        DecodeTile(*sizes)
        for sizes in itertools.product((32, 64, 128), (2, 4, 8), (4, 5, 7), (1, 2, 3, 4, 6), (128, 256))
    ]
    return prefills, decodes


def tune(bench: Bench) -> Iterator[dict[str, object]]:
    """The best prefill tile over blocks of 16 and the best decode tile in each case of the table, best first."""
    prefills, decodes = candidates()
    shape, card = attention_shape(bench.dtype), card_of(bench.device)
    width = shape.head_dim
    prefill_now, decode_now = (look_up(card, width, 2) for look_up in (prefill_tile, decode_tile))
    batch = paged_batch([(PREFILL_LENGTH, 0)], shape, bench.device)
    timed = []
    for prefill in prefills:
        tasks = make_tasks(batch.metadata, shape, prefill, decode_now, card)
        arguments = batch.query, batch.key_cache, batch.value_cache, replace(batch.metadata, tasks=tasks), batch.layer
        output = torch.empty_like(batch.query)
        seconds = _seconds(bench, partial(prefill_attention, *arguments, prefill, output))
        timed.append((seconds, prefill))
    yield _ranking("prefill", "8k", timed)
    for case, (num_rows, context, _) in DECODES.items():
        batch = paged_batch([(1, context - 1)] * num_rows, shape, bench.device)
        timed_decodes = []
        for decode in decodes:
            tasks = make_tasks(batch.metadata, shape, prefill_now, decode, card)
            metadata = replace(batch.metadata, tasks=tasks)
            arguments = batch.query, batch.key_cache, batch.value_cache, metadata, batch.layer
            output = torch.empty_like(batch.query)
            seconds = _seconds(bench, partial(decode_attention, *arguments, decode, output))
            timed_decodes.append((seconds, decode))
        yield _ranking("decode", case, timed_decodes)


def _seconds(bench: Bench, launch: Callable[[], None]) -> float:
    try:
        return bench.timer(launch)
    except OutOfResources:
        return float("inf")


def _ranking(name: str, case: str, timed: list[tuple[float, object]]) -> dict[str, object]:
    best = sorted(timed, key=lambda entry: entry[0])[:5]
    return {"name": f"gpu.tune_{name}", "case": case, "best": [[round(s * 1e6, 2), str(tile)] for s, tile in best]}
