"""`python -m benchmarks.gpu.decode_packing`: a card's utilisation by decode attention, by simulation. Needs no card.

Programs run in the order of their launch on the places of a card: a free place takes the next one. Time is counted in
tiles. Prints the shares of `decode_shares.py` beside the earlier rule, splits of equal length for two waves.
"""

import heapq
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyllm_kernels.cards import Card
from pyllm_kernels.decode_shares import ROW_TILES, count_shares, cut_rows
from pyllm_kernels.gpu.paged_attention.attention_tuning import decode_tile

Lengths = npt.NDArray[np.int32]
CASES = {"1x32k": (1, 32_768), "16x8k": (16, 8192), "64x4k": (64, 4096), "256x1k": (256, 1024)}


@dataclass(frozen=True)
class Places:
    """A card, and the decode tile on it: an H200 with heads of 128, for Llama-3.1-8B."""

    num_multiprocessors: int = 132
    programs_per_multiprocessor: int = 3
    kv_heads: int = 8
    block_n: int = 64
    min_split: int = 128

    @classmethod
    def of(cls, card: Card, kv_heads: int, head_dim: int) -> "Places":
        """The card, with its tile for two-byte queries."""
        tile = decode_tile(card, head_dim, 2)
        programs = tile.programs_per_multiprocessor
        return cls(card.num_multiprocessors, programs, kv_heads, tile.block_n, tile.min_split)

    @property
    def resident(self) -> int:
        """The number of programs that run at once."""
        return self.num_multiprocessors * self.programs_per_multiprocessor


def by_shares(lengths: Lengths, places: Places, row_tiles: float = ROW_TILES) -> npt.NDArray[np.float64]:
    """The cost of each program in tiles: a share of one KV head. A split costs its tiles and `row_tiles`."""
    num_shares = count_shares(places.resident, places.kv_heads)
    splits = cut_rows(lengths, places.block_n, num_shares, places.min_split // places.block_n)
    tiles = -(-(splits.ends - splits.starts) // places.block_n)
    costs = np.bincount(splits.shares, tiles + row_tiles, num_shares)
    return np.repeat(costs, places.kv_heads)


def by_equal_splits(lengths: Lengths, places: Places, row_tiles: float = ROW_TILES) -> npt.NDArray[np.float64]:
    """The costs with the earlier rule: a program for each split, of 1/target of all positions."""
    target = max(2 * places.resident // places.kv_heads, 1)
    share = -(-int(lengths.sum()) // target)
    split = max(-(-share // places.block_n) * places.block_n, places.min_split)
    tiles: list[int] = []
    for length in lengths.tolist():
        tiles += [-(-min(split, length - start) // places.block_n) for start in range(0, length, split)]
    return np.repeat(np.array(tiles) + row_tiles, places.kv_heads)


def makespan(costs: Iterable[float], resident: int) -> float:
    """The time at which the last of these programs ends."""
    free = [0.0] * resident
    for cost in costs:
        heapq.heapreplace(free, free[0] + cost)
    return max(free)


def packing(lengths: Lengths, places: Places, *, before: bool = False, row_tiles: float = 0) -> float:
    """The time of all tiles without idle places, as a share of the programs' time."""
    costs = (by_equal_splits if before else by_shares)(lengths, places, row_tiles)
    ideal = float((-(-lengths // places.block_n)).sum()) * places.kv_heads / places.resident
    return ideal / makespan(costs.tolist(), places.resident)


def figures(places: Places) -> Iterator[dict[str, object]]:
    """A line for each case; `with_starts` includes the cost of rows beside their tiles."""
    for case, (rows, context) in CASES.items():
        lengths = np.full(rows, context, np.int32)
        yield {
            "name": "gpu.decode_packing",
            "case": case,
            "value": round(packing(lengths, places), 3),
            "with_starts": round(packing(lengths, places, row_tiles=ROW_TILES), 3),
            "before": round(packing(lengths, places, before=True), 3),
            "before_with_starts": round(packing(lengths, places, before=True, row_tiles=ROW_TILES), 3),
        }


if __name__ == "__main__":
    for figure in figures(Places()):
        print(json.dumps(figure))
