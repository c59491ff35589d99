"""The cards and the packages that kernels need, without importing any of them.

Knows no model. Versions are those of installed distributions; the driver's library lists the cards.
"""

import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

import msgspec

from pyllm.machine.cuda_driver import VisibleCard, driver_version, visible_cards

PACKAGES = ("pyllm", "torch", "triton", "transformers", "tokenizers", "huggingface_hub")

# Lowest compute capabilities (major * 10 + minor) that the kernels, bfloat16 and float8 need: `pyllm_kernels/cards.py`.
OLDEST_CARD, OLDEST_BFLOAT16, OLDEST_FLOAT8 = 75, 80, 89


class Card(msgspec.Struct, frozen=True):
    """A card, and the features of the Triton kernels on it."""

    name: str
    capability: str
    memory_bytes: int
    runs_kernels: bool
    bfloat16: bool
    float8: bool


class Software(msgspec.Struct, frozen=True, kw_only=True):
    """Installed software. `packages` maps names to versions; the version of a missing package is empty."""

    system: str
    python: str
    packages: Mapping[str, str]
    cuda_driver: str  # the newest CUDA version that the driver supports; empty without a driver
    cards: tuple[Card, ...]


def installed_version(package: str) -> str:
    """The version of a distribution; empty where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def read_software(
    list_cards: Callable[[], Sequence[VisibleCard]] = visible_cards,
    find_version: Callable[[str], str] = installed_version,
    find_driver: Callable[[], str] = driver_version,
) -> Software:
    """The software and cards of this machine."""
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
