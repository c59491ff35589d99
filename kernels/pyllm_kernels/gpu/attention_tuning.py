"""The tiles, warps and stages of attention for each kind of card.

These are constants, which depend on the card and the shapes of a model alone. This module does not know the batch, and
imports no Triton. `python -m benchmarks.gpu tune` times the neighbours of each entry on the current card.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from pyllm_kernels.cards import OLDEST_CAPABILITY, Card


class PrefillTile(NamedTuple):
    """A tile of prefill: `block_m` (token, head) pairs attend to `block_n` positions at a time."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


class DecodeTile(NamedTuple):
    """A tile of decode: `block_n` positions at a time; parts of a row have `min_split` or more, except at its ends.

    `programs_per_multiprocessor` is the number of programs that run at once, which follows from their shared memory and
    registers: shares of decode are cut to fill whole waves of them, so a wrong number leaves much of a card idle.
    """

    block_n: int
    num_warps: int
    num_stages: int
    programs_per_multiprocessor: int
    min_split: int


# By the oldest capability for an entry, then by the largest padded head size. For two-byte queries.
# Positions come through the block table, a load that waits for a load: Triton keeps one tile in flight with 4 stages
# (2 for WGMMA), one more with 5. No entry spills registers or exceeds its shared memory, as compiled by Triton 3.9;
# the fastest of the entries that fit has not been measured. For 7.5 Triton does not use tensor cores.
_SMALL_PREFILL = {64: PrefillTile(128, 64, 8, 5), 128: PrefillTile(64, 32, 4, 5), 256: PrefillTile(64, 16, 8, 4)}
_SMALL_DECODE = {64: DecodeTile(64, 4, 5, 2, 128), 128: DecodeTile(32, 4, 5, 2, 128), 256: DecodeTile(16, 4, 5, 2, 128)}
_PREFILL = {
    120: _SMALL_PREFILL,  # As 8.6 and 8.9, these share 99 KiB where 9.0 has 227.
    90: {64: PrefillTile(128, 128, 8, 4), 128: PrefillTile(128, 64, 8, 5), 256: PrefillTile(64, 32, 8, 4)},
    86: _SMALL_PREFILL,
    80: {64: PrefillTile(128, 64, 8, 5), 128: PrefillTile(128, 64, 8, 5), 256: PrefillTile(64, 32, 8, 4)},
    75: {64: PrefillTile(16, 32, 4, 2), 128: PrefillTile(16, 32, 4, 2), 256: PrefillTile(16, 16, 4, 2)},
}
_DECODE = {
    120: _SMALL_DECODE | {128: DecodeTile(32, 8, 5, 2, 128)},  # With 4 warps, ptxas spills; over fp8 with 8.
    90: {64: DecodeTile(64, 4, 5, 5, 128), 128: DecodeTile(64, 4, 5, 3, 128), 256: DecodeTile(32, 4, 5, 3, 128)},
    86: _SMALL_DECODE,
    80: {64: DecodeTile(64, 4, 5, 4, 128), 128: DecodeTile(64, 4, 5, 2, 128), 256: DecodeTile(32, 4, 5, 2, 128)},
    75: {64: DecodeTile(32, 4, 2, 2, 128), 128: DecodeTile(16, 4, 2, 2, 128), 256: DecodeTile(16, 4, 2, 2, 128)},
}
# With an fp8 cache, conversions take registers: at most this many programs of 4 warps run at once.
_FLOAT8_PROGRAMS = {64: 4, 128: 2, 256: 2}
_Tile = TypeVar("_Tile")


def prefill_tile(card: Card, padded_head_dim: int, element_size: int, cache_size: int | None = None) -> PrefillTile:
    """The tile for queries of `element_size` bytes an element; `cache_size`: bytes in the cache, None for the same."""
    if element_size == 4:  # Twice the bytes and no tensor cores: 8 warps, as 4 would spill registers.
        return PrefillTile(32, 32 if padded_head_dim <= 64 else 16, 8, _float32_stages(cache_size))
    return _look_up(_PREFILL, card, padded_head_dim)


def decode_tile(card: Card, padded_head_dim: int, element_size: int, cache_size: int | None = None) -> DecodeTile:
    """The tile for queries of `element_size` bytes an element; `cache_size`: bytes in the cache, None for the same."""
    if element_size == 4:
        return DecodeTile(max(min(64, 4096 // padded_head_dim), 16), 8, _float32_stages(cache_size), 2, 128)
    tile = _look_up(_DECODE, card, padded_head_dim)
    if cache_size == 1:
        programs = min(tile.programs_per_multiprocessor, _of_width(_FLOAT8_PROGRAMS, padded_head_dim))
        return tile._replace(num_warps=4, programs_per_multiprocessor=programs)
    return tile


def _float32_stages(cache_size: int | None) -> int:
    # With tiles in flight, Triton converts fp8 after shared memory, where every thread needs whole keys in registers.
    return 1 if cache_size == 1 else 2


def _look_up(table: Mapping[int, Mapping[int, _Tile]], card: Card, padded_head_dim: int) -> _Tile:
    oldest = max(capability for capability in table if capability <= max(card.capability, OLDEST_CAPABILITY))
    return _of_width(table[oldest], padded_head_dim)


def _of_width(widths: Mapping[int, _Tile], padded_head_dim: int) -> _Tile:
    return widths[min((width for width in widths if width >= padded_head_dim), default=max(widths))]
