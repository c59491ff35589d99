"""States on the host: whole states of all layers go out and come back, and those with a name outlive the process."""

import os

import numpy as np
import pytest
import torch

from pyllm.errors import ProtocolError
from pyllm.wire.plan_layout import NO_GROUP
from pyllm.workers.devices.host import HostDevice
from pyllm.workers.devices.torch_device import TorchDevice
from pyllm.workers.kv.host_states import HostStates
from pyllm.workers.kv.host_tier import HostTier

DEVICE = HostDevice()
NUM_STATES = 4
SHAPES = ((3, 2), (2, 2, 5))
NAME = bytes([7] * 32) + (1).to_bytes(4, "little") + bytes(4)
NO_NAME = bytes(32) + NO_GROUP.to_bytes(4, "little") + bytes(4)


def parts() -> list[np.ndarray]:
    return [np.random.default_rng(1).random((NUM_STATES, *shape), np.float32) for shape in SHAPES]


def names(*each: bytes) -> np.ndarray:
    return np.frombuffer(b"".join(each), np.uint8)


def triples(*swaps: tuple[int, int, int]) -> np.ndarray:
    return np.array(swaps, np.int32)


def test_outs_come_before_ins_and_a_state_is_whole() -> None:
    held, before = parts(), parts()
    host = HostStates(held, DEVICE, NUM_STATES, 2, None)
    host.swap(triples((0, 3, 1), (0, 0, 0), (1, 2, 1)), names(NO_NAME, NO_NAME))
    for part in held:
        part[[0, 3]] = 0
    host.swap(triples((1, 0, 0), (1, 3, 1)), names())
    for part, was in zip(held, before, strict=True):
        assert (part == was[[0, 1, 3, 3]]).all()


def test_those_of_a_device_of_torch_move_alike() -> None:
    held = [torch.from_numpy(part) for part in parts()]
    host = HostStates(held, TorchDevice(torch.device("cpu")), NUM_STATES, 2, None)
    host.swap(triples((0, 3, 1), (1, 0, 1)), names(NO_NAME))
    for part, was in zip(held, parts(), strict=True):
        assert (part.numpy() == was[[3, 1, 2, 3]]).all()


def test_states_with_a_name_outlive_the_process() -> None:
    descriptor = os.memfd_create("states")
    floats = sum(int(np.prod(shape)) for shape in SHAPES)

    def opened() -> HostTier:
        tier = HostTier(descriptor, bytes(32), 3, (floats,), "float32")
        tier.inventory()
        return tier

    host = HostStates(parts(), DEVICE, NUM_STATES, 3, opened())
    host.swap(triples((0, 1, 2), (0, 2, 0)), names(NAME, NO_NAME))
    tier = opened()
    assert tier.inventory() == (2).to_bytes(4, "little") + NAME
    held = [np.zeros_like(part) for part in parts()]
    HostStates(held, DEVICE, NUM_STATES, 3, tier).swap(triples((1, 0, 2)), names())
    assert all((part[0] == was[1]).all() for part, was in zip(held, parts(), strict=True))
    os.close(descriptor)


def test_a_stage_without_states_keeps_their_names_alone() -> None:
    descriptor = os.memfd_create("states")
    HostStates([], DEVICE, NUM_STATES, 3, HostTier(descriptor, bytes(32), 3, (0,), "float32")).swap(
        triples((0, 1, 2)), names(NAME)
    )
    assert HostTier(descriptor, bytes(32), 3, (0,), "float32").inventory() == (2).to_bytes(4, "little") + NAME
    os.close(descriptor)


def test_a_swap_is_timed_on_empty_memory() -> None:
    ticks = iter([0.0, 5.0, 10.0, 12.0, 20.0, 23.0])
    assert HostStates(parts(), DEVICE, NUM_STATES, 2, None, clock=lambda: next(ticks)).time_swaps() == 2.0


@pytest.mark.parametrize("swap", [(0, 4, 0), (0, 0, 2), (2, 0, 0), (1, -1, 0)])
def test_a_swap_of_what_does_not_exist_is_refused(swap: tuple[int, int, int]) -> None:
    with pytest.raises(ProtocolError, match="4 device states, 2 host states"):
        HostStates(parts(), DEVICE, NUM_STATES, 2, None).swap(triples(swap), names(NO_NAME))
