"""Packages and cards of a machine that is made up."""

from pyllm.machine.cuda_driver import VisibleCard
from pyllm.machine.software import PACKAGES, installed_version, read_software


def test_cards_say_what_kernels_can_do() -> None:
    cards = (VisibleCard(70, 1, "V100"), VisibleCard(75, 2, "T4"), VisibleCard(80, 3, "A100"), VisibleCard(89, 4, "L4"))
    found = read_software(lambda: cards, lambda name: "" if name == "triton" else "1.0", lambda: "12.8")
    assert [(card.name, card.capability, card.memory_bytes) for card in found.cards] == [
        ("V100", "7.0", 1),
        ("T4", "7.5", 2),
        ("A100", "8.0", 3),
        ("L4", "8.9", 4),
    ]
    assert [(card.runs_kernels, card.bfloat16, card.float8) for card in found.cards] == [
        (False, False, False),
        (True, False, False),
        (True, True, False),
        (True, True, True),
    ]
    assert found.packages == {name: "" if name == "triton" else "1.0" for name in PACKAGES}
    assert found.cuda_driver == "12.8"


def test_versions_are_those_that_are_installed() -> None:
    assert installed_version("msgspec")
    assert installed_version("no-such-package-here") == ""
