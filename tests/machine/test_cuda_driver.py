"""Cards as a driver's library lists them; a fake stands for it."""

from typing import Any

import pytest

from pyllm.machine.cuda_driver import VisibleCard, driver_version, read_cards, visible_cards

GIB = 1 << 30


class FakeDriver:
    """Two cards; the function `fails` gives CUDA_ERROR_UNKNOWN."""

    def __init__(self, fails: str = "") -> None:
        self._fails = fails

    def cuInit(self, flags: int) -> int:  # noqa: N802 - the driver's name
        return self._code("cuInit")

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return self._code("cuDeviceGetCount")

    def cuDeviceGet(self, device: Any, number: int) -> int:  # noqa: N802
        device._obj.value = 10 + number
        return self._code("cuDeviceGet")

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
        value._obj.value = {(75, 10): 9, (76, 10): 0, (75, 11): 7, (76, 11): 5}[attribute, device.value]
        return self._code("cuDeviceGetAttribute")

    def cuDeviceTotalMem_v2(self, memory: Any, device: Any) -> int:  # noqa: N802
        memory._obj.value = {10: 141 * GIB, 11: 15 * GIB}[device.value]
        return self._code("cuDeviceTotalMem_v2")

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:  # noqa: N802
        name.value = {10: b"NVIDIA H200", 11: b"Tesla T4"}[device.value][: size - 1]
        return self._code("cuDeviceGetName")

    def _code(self, name: str) -> int:
        return 999 if name == self._fails else 0


def test_cards_come_with_capability_and_memory() -> None:
    assert read_cards(FakeDriver()) == (
        VisibleCard(90, 141 * GIB, "NVIDIA H200"),
        VisibleCard(75, 15 * GIB, "Tesla T4"),
    )


@pytest.mark.parametrize(
    "name",
    ["cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetAttribute", "cuDeviceTotalMem_v2", "cuDeviceGetName"],
)
def test_a_driver_that_fails_has_no_cards(name: str) -> None:
    assert read_cards(FakeDriver(name)) == ()


def test_without_a_driver_there_are_no_cards() -> None:
    assert visible_cards("libcuda-of-nobody.so.1") == ()
    assert driver_version("libcuda-of-nobody.so.1") == ""
