"""CUDA cards: which ones the Triton kernels run on, and the tiles, warps and stages of attention for each of them.

These are constants, found once and written down. What is looked up here follows from the card and the shapes of a
model alone: it does not know the batch. `python -m benchmarks.gpu --tune` times the neighbours of each entry
on the card at hand.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

# Major * 10 + minor. Triton compiles for nothing older than Turing.
OLDEST_CAPABILITY = 75
_OLDEST_BFLOAT16 = 80
_OLDEST_FLOAT8 = 89


class CardError(ValueError):
    """The card cannot run the kernels in these precisions."""


def check_card(name: str, capability: tuple[int, int], dtype: torch.dtype, kv_cache_dtype: torch.dtype) -> None:
    """Refuse a card that the kernels cannot run on, with what to do instead.

    Raises:
        CardError: it is too old for the kernels, or for one of the precisions.
    """
    number, version = capability[0] * 10 + capability[1], f"{capability[0]}.{capability[1]}"
    if number < OLDEST_CAPABILITY:
        raise CardError(
            f"{name} has compute capability {version}, and Triton compiles for 7.5 (Turing) and later: use device cpu"
        )
    if number < _OLDEST_BFLOAT16 and torch.bfloat16 in (dtype, kv_cache_dtype):
        raise CardError(
            f"{name} has compute capability {version}, and bfloat16 arithmetic begins with 8.0 (Ampere): "
            "use dtype float16"
        )
    if number < _OLDEST_FLOAT8 and kv_cache_dtype is torch.float8_e4m3fn:
        raise CardError(
            f"{name} has compute capability {version}, and conversions of fp8 (e4m3) begin with 8.9 (Ada): "
            "use kv_cache_dtype auto"
        )


@dataclass(frozen=True, slots=True)
class Card:
    """What the kernels ask about a GPU. The interpreter has none: it is a small one of the newest kind."""

    capability: int  # major * 10 + minor
    num_multiprocessors: int


INTERPRETED = Card(90, 4)


@dataclass(frozen=True, slots=True)
class PrefillTile:
    """`block_m` (token, head) pairs meet `block_n` positions at a time."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class DecodeTile:
    """`block_n` positions at a time; a split has at least `min_split` of them.

    Splits are cut so that each multiprocessor gets about `programs_per_multiprocessor` programs. How many of these run
    at once follows from their shared memory and registers: a number that is no multiple of that ends in a wave that
    leaves some idle.
    """

    block_n: int
    num_warps: int
    num_stages: int
    programs_per_multiprocessor: int
    min_split: int


# By the oldest capability an entry is for, then by the largest width of a padded head. Two-byte queries.
# Positions come through the block table, a load that waits for a load: Triton keeps one tile in flight with 4 stages
# (2 for WGMMA), one more with 5. No entry spills registers or exceeds its shared memory, as compiled by Triton 3.9;
# which of those that fit is fastest has not been measured. For 7.5 Triton has no tensor cores.
_SMALL_PREFILL = {64: PrefillTile(128, 64, 8, 5), 128: PrefillTile(64, 32, 4, 5), 256: PrefillTile(64, 16, 4, 4)}
_SMALL_DECODE = {64: DecodeTile(64, 4, 5, 4, 128), 128: DecodeTile(32, 4, 5, 4, 128), 256: DecodeTile(16, 4, 5, 4, 128)}
_PREFILL = {
    120: _SMALL_PREFILL,  # As 8.6 and 8.9, these share 99 KiB where 9.0 has 227.
    90: {64: PrefillTile(128, 128, 8, 4), 128: PrefillTile(128, 64, 8, 5), 256: PrefillTile(64, 32, 8, 4)},
    86: _SMALL_PREFILL,
    80: {64: PrefillTile(128, 64, 8, 5), 128: PrefillTile(128, 64, 8, 5), 256: PrefillTile(64, 32, 8, 4)},
    75: {64: PrefillTile(16, 32, 4, 2), 128: PrefillTile(16, 32, 4, 2), 256: PrefillTile(16, 16, 4, 2)},
}
_DECODE = {
    120: _SMALL_DECODE,
    90: {64: DecodeTile(64, 4, 5, 12, 128), 128: DecodeTile(64, 4, 5, 6, 128), 256: DecodeTile(32, 4, 5, 6, 128)},
    86: _SMALL_DECODE,
    80: {64: DecodeTile(64, 4, 5, 8, 128), 128: DecodeTile(64, 4, 5, 4, 128), 256: DecodeTile(32, 4, 5, 4, 128)},
    75: {64: DecodeTile(32, 4, 2, 4, 128), 128: DecodeTile(16, 4, 2, 4, 128), 256: DecodeTile(16, 4, 2, 4, 128)},
}
_Tile = TypeVar("_Tile")


@functools.cache
def card_of(device: torch.device) -> Card:
    """The card of a CUDA device; any other device means the interpreter."""
    if device.type != "cuda":
        return INTERPRETED
    properties = torch.cuda.get_device_properties(device)
    return Card(properties.major * 10 + properties.minor, properties.multi_processor_count)


def prefill_tile(card: Card, padded_head_dim: int, element_size: int) -> PrefillTile:
    """The tile for queries of `element_size` bytes an element."""
    if element_size == 4:  # Twice the bytes and no tensor cores.
        return PrefillTile(32, max(min(64, 4096 // padded_head_dim), 16), 4, 2)
    return _look_up(_PREFILL, card, padded_head_dim)


def decode_tile(card: Card, padded_head_dim: int, element_size: int) -> DecodeTile:
    """The tile for queries of `element_size` bytes an element."""
    if element_size == 4:
        return DecodeTile(max(min(64, 4096 // padded_head_dim), 16), 4, 2, 4, 128)
    return _look_up(_DECODE, card, padded_head_dim)


def _look_up(table: Mapping[int, Mapping[int, _Tile]], card: Card, padded_head_dim: int) -> _Tile:
    widths = table[max(capability for capability in table if capability <= max(card.capability, OLDEST_CAPABILITY))]
    return widths[min((width for width in widths if width >= padded_head_dim), default=max(widths))]
