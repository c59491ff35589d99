"""CUDA cards: those that the Triton kernels support, and the properties that kernels read. Knows no kernel."""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Major * 10 + minor. Triton compiles for nothing older than Turing.
OLDEST_CAPABILITY = 75
_OLDEST_BFLOAT16 = 80
_OLDEST_FLOAT8 = 89
WIDEST_FLOAT32_HEAD = 256
"""A tile of wider heads in float32 does not fit into the 64 KiB of shared memory of Turing."""


class CardError(ValueError):
    """A card that cannot run the kernels in these precisions."""


def check_card(name: str, capability: tuple[int, int], dtype: str, kv_cache_dtype: str, widest_head: int = 0) -> None:
    """Refuse a card that cannot run the kernels; the error suggests other settings.

    `widest_head`: the numbers that the cache keeps of a token for one head, the most of all layers.

    Raises:
        CardError: the card is too old for the kernels, for one of the precisions, or for such heads in float32.
    """
    number, version = capability[0] * 10 + capability[1], f"{capability[0]}.{capability[1]}"
    if number < OLDEST_CAPABILITY:
        raise CardError(
            f"{name} has compute capability {version}, and Triton compiles for 7.5 (Turing) and later: use device cpu"
        )
    if number < _OLDEST_BFLOAT16 and "bfloat16" in (dtype, kv_cache_dtype):
        raise CardError(
            f"{name} has compute capability {version}, and bfloat16 arithmetic begins with 8.0 (Ampere): "
            "use dtype float16"
        )
    if number < _OLDEST_FLOAT8 and kv_cache_dtype == "float8_e4m3fn":
        raise CardError(
            f"{name} has compute capability {version}, and conversions of fp8 (e4m3) begin with 8.9 (Ada): "
            "use kv_cache_dtype auto"
        )
    if number < _OLDEST_BFLOAT16 and dtype == "float32" and widest_head > WIDEST_FLOAT32_HEAD:
        raise CardError(
            f"{name} has compute capability {version}, whose shared memory has no room for heads of {widest_head} "
            f"numbers in float32, only of {WIDEST_FLOAT32_HEAD}: use dtype float16"
        )


@dataclass(frozen=True, slots=True)
class Card:
    """The properties of a GPU that kernels read. The interpreter has those of a small GPU of the newest kind."""

    capability: int  # major * 10 + minor
    num_multiprocessors: int


INTERPRETED = Card(90, 4)


@functools.cache
def card_of(device: "torch.device") -> Card:
    """The card of a CUDA device; `INTERPRETED` for any other device."""
    if device.type != "cuda":
        return INTERPRETED
    import torch

    properties = torch.cuda.get_device_properties(device)
    return Card(properties.major * 10 + properties.minor, properties.multi_processor_count)
