"""Copies between host and device: on a CPU there is nothing to wait for."""

import torch

from pyllm.workers.step.staging import HostCopy, to_device

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_a_tensor_arrives_on_the_device() -> None:
    moved = to_device(torch.arange(5), DEVICE)
    assert moved.device.type == DEVICE.type
    assert moved.tolist() == [0, 1, 2, 3, 4]


def test_a_tensor_comes_back() -> None:
    copy = HostCopy(torch.arange(5, device=DEVICE))
    assert copy.wait().numpy().tolist() == [0, 1, 2, 3, 4]
    assert copy.is_done()
