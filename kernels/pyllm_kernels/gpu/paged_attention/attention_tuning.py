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

    Up to `block_m` of the query heads that share a KV head are in one program.
    `programs_per_multiprocessor` is the number of programs that run at once, which follows from their shared memory and
    registers: shares of decode are cut to fill whole waves of them, so a wrong number leaves much of a card idle.
    """

    block_n: int
    num_warps: int
    num_stages: int
    programs_per_multiprocessor: int
    min_split: int
    block_m: int = 64


# By the oldest capability for an entry, then by the largest padded size of a value. For two-byte queries.
# Positions come through the block table, a load that waits for a load: Triton keeps one tile in flight with 4 stages
# (2 for WGMMA), one more with 5. No entry spills registers or exceeds its shared memory, as compiled by Triton 3.9;
# the fastest of the entries that fit has not been measured. For 7.5 Triton does not use tensor cores.
_SMALL_PREFILL = {
    64: PrefillTile(128, 64, 8, 5),
    128: PrefillTile(64, 32, 4, 5),
    256: PrefillTile(64, 16, 8, 4),
    512: PrefillTile(32, 16, 8, 5),
}
_SMALL_DECODE = {
    64: DecodeTile(64, 4, 5, 2, 128),
    128: DecodeTile(32, 4, 5, 2, 128),
    256: DecodeTile(16, 4, 5, 2, 128),
    512: DecodeTile(16, 8, 5, 1, 128, 16),
}
_PREFILL = {
    # As 8.6 and 8.9, these share 99 KiB where 9.0 has 227. With 8 warps, ptxas spills at 512.
    120: _SMALL_PREFILL | {512: PrefillTile(32, 16, 16, 5)},
    90: {
        64: PrefillTile(128, 128, 8, 4),
        128: PrefillTile(128, 64, 8, 5),
        256: PrefillTile(64, 32, 8, 4),
        512: PrefillTile(32, 16, 8, 5),
    },
    86: _SMALL_PREFILL,
    80: {
        64: PrefillTile(128, 64, 8, 5),
        128: PrefillTile(128, 64, 8, 5),
        256: PrefillTile(64, 32, 8, 4),
        512: PrefillTile(32, 16, 8, 5),
    },
    75: {
        64: PrefillTile(16, 32, 4, 2),
        128: PrefillTile(16, 32, 4, 2),
        256: PrefillTile(16, 16, 4, 2),
        512: PrefillTile(16, 16, 8, 1),
    },
}
_DECODE = {
    # With 4 warps, ptxas spills; over fp8 with 8.
    120: _SMALL_DECODE | {128: DecodeTile(32, 8, 5, 2, 128)},
    90: {
        64: DecodeTile(64, 4, 5, 5, 128),
        128: DecodeTile(64, 4, 5, 3, 128),
        256: DecodeTile(32, 4, 5, 3, 128),
        512: DecodeTile(32, 8, 5, 1, 128, 16),
    },
    86: _SMALL_DECODE,
    80: {
        64: DecodeTile(64, 4, 5, 4, 128),
        128: DecodeTile(64, 4, 5, 2, 128),
        256: DecodeTile(32, 4, 5, 2, 128),
        512: DecodeTile(32, 8, 5, 1, 128, 16),
    },
    75: {
        64: DecodeTile(32, 4, 2, 2, 128),
        128: DecodeTile(16, 4, 2, 2, 128),
        256: DecodeTile(16, 4, 2, 2, 128),
        512: DecodeTile(16, 8, 1, 1, 128, 16),
    },
}
# For latents: many query heads share a vector, which is loaded once as key and value. On 9.0 a tile of 64 rows, which
# WGMMA needs, would spill registers at 512; so there it is `mma.sync`.
_SMALL_LATENT_PREFILL = {256: PrefillTile(64, 16, 8, 5), 512: PrefillTile(32, 16, 8, 5)}
_LATENT_PREFILL = {
    120: _SMALL_LATENT_PREFILL,
    90: {256: PrefillTile(64, 64, 8, 4), 512: PrefillTile(32, 32, 8, 5)},
    86: _SMALL_LATENT_PREFILL,
    80: {256: PrefillTile(64, 32, 8, 4), 512: PrefillTile(32, 32, 8, 5)},
    75: {256: PrefillTile(16, 16, 4, 2), 512: PrefillTile(8, 16, 8, 1)},
}
_SMALL_LATENT_DECODE = {256: DecodeTile(32, 4, 5, 1, 128, 32), 512: DecodeTile(16, 8, 5, 1, 128, 32)}
_LATENT_DECODE = {
    120: _SMALL_LATENT_DECODE,
    90: {256: DecodeTile(32, 4, 5, 2, 128, 32), 512: DecodeTile(32, 8, 5, 1, 128, 32)},
    86: _SMALL_LATENT_DECODE,
    80: {256: DecodeTile(32, 4, 5, 2, 128, 32), 512: DecodeTile(32, 8, 5, 1, 128, 32)},
    75: {256: DecodeTile(16, 4, 2, 1, 128, 16), 512: DecodeTile(16, 8, 1, 1, 128, 8)},
}
# With an fp8 cache, conversions take registers: at most this many programs of 4 warps run at once.
_FLOAT8_PROGRAMS = {64: 4, 128: 2, 256: 2, 512: 1}
_Tile = TypeVar("_Tile")


def prefill_tile(
    card: Card, padded_size: int, element_size: int, cache_size: int | None = None, latents: bool = False
) -> PrefillTile:
    """The tile for queries of `element_size` bytes an element; `cache_size`: bytes in the cache, None for the same.

    `padded_size` is that of a value; `latents`: values are in their keys.
    """
    if element_size == 4:  # Twice the bytes and no tensor cores: 8 warps, as 4 would spill registers.
        stages = _float32_stages(cache_size, padded_size)
        return PrefillTile(32 if padded_size <= 256 else 16, 32 if padded_size <= 64 else 16, 8, stages)
    return _look_up(_LATENT_PREFILL if latents else _PREFILL, card, padded_size)


def decode_tile(
    card: Card, padded_size: int, element_size: int, cache_size: int | None = None, latents: bool = False
) -> DecodeTile:
    """The tile of decode; arguments as in `prefill_tile`."""
    if element_size == 4:
        stages = _float32_stages(cache_size, padded_size)
        return DecodeTile(max(min(64, 4096 // padded_size), 16), 8, stages, 2, 128, 64 if padded_size <= 256 else 16)
    tile = _look_up(_LATENT_DECODE if latents else _DECODE, card, padded_size)
    if cache_size == 1:
        programs = min(tile.programs_per_multiprocessor, _of_width(_FLOAT8_PROGRAMS, padded_size))
        warps = 4 if padded_size <= 256 else tile.num_warps
        return tile._replace(num_warps=warps, programs_per_multiprocessor=programs)
    return tile


def _float32_stages(cache_size: int | None, padded_size: int) -> int:
    # With tiles in flight, Triton converts fp8 after shared memory, where every thread needs whole keys in registers.
    return 1 if cache_size == 1 or padded_size > 256 else 2


def _look_up(table: Mapping[int, Mapping[int, _Tile]], card: Card, padded_size: int) -> _Tile:
    oldest = max(capability for capability in table if capability <= max(card.capability, OLDEST_CAPABILITY))
    return _of_width(table[oldest], padded_size)


def _of_width(widths: Mapping[int, _Tile], padded_size: int) -> _Tile:
    return widths[min((width for width in widths if width >= padded_size), default=max(widths))]
