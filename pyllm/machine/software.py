"""The cards and the packages that kernels need, without importing any of them.

Knows no model. Versions are those of installed distributions; cards are what the driver's library lists.
"""

import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

import msgspec

from pyllm.launch import VisibleCard, driver_version, visible_cards

PACKAGES = ("pyllm", "torch", "triton", "transformers", "tokenizers", "huggingface_hub")

# Compute capabilities (major * 10 + minor) from which on there is what the kernels need: `pyllm_kernels/cards.py`.
OLDEST_CARD, OLDEST_BFLOAT16, OLDEST_FLOAT8 = 75, 80, 89


class Card(msgspec.Struct, frozen=True):
    """A card, and what the Triton kernels can do on it."""

    name: str
    capability: str
    memory_bytes: int
    runs_kernels: bool
    bfloat16: bool
    float8: bool


class Software(msgspec.Struct, frozen=True, kw_only=True):
    """`packages` has the version of each, empty where it is not installed."""

    system: str
    python: str
    packages: Mapping[str, str]
    cuda_driver: str  # the newest CUDA that it runs; empty without a driver
    cards: tuple[Card, ...]


def installed_version(package: str) -> str:
    """Of a distribution; empty where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def read_software(
    list_cards: Callable[[], Sequence[VisibleCard]] = visible_cards,
    find_version: Callable[[str], str] = installed_version,
    find_driver: Callable[[], str] = driver_version,
) -> Software:
    """What is installed here."""
    return Software(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        packages={name: find_version(name) for name in PACKAGES},
        cuda_driver=find_driver(),
        cards=tuple(
            Card(
                name=card.name,
                capability=f"{card.capability // 10}.{card.capability % 10}",
                memory_bytes=card.memory_bytes,
                runs_kernels=card.capability >= OLDEST_CARD,
                bfloat16=card.capability >= OLDEST_BFLOAT16,
                float8=card.capability >= OLDEST_FLOAT8,
            )
            for card in list_cards()
        ),
    )
