"""The tensors of each device; which kernels fit a graph, by device and backend; the precision of torch's sums."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from pyllm_kernels import select
from pyllm_kernels.host_copies import host_array

from pyllm.workers.attention_backends import fits_graphs, load_attention_backend
from pyllm.workers.devices.configured import worker_device
from pyllm.workers.devices.host import HostDevice
from pyllm.workers.devices.torch_device import TorchDevice, configure_torch
from tests.tiny_model import write_tiny_model
from tests.workers.engine import worker_config

MATMUL = torch.backends.cuda.matmul
REDUCED = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")
FLAGS = (*REDUCED, "allow_fp16_accumulation", "allow_tf32")


@pytest.fixture
def reduced_sums() -> Iterator[None]:
    """All that torch may do with less than float32."""
    before = {name: getattr(MATMUL, name) for name in FLAGS}, torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    for name in FLAGS:
        setattr(MATMUL, name, True)
    yield
    torch.set_float32_matmul_precision(before[1])
    for name, value in before[0].items():
        setattr(MATMUL, name, value)


@pytest.mark.usefixtures("reduced_sums")
def test_torch_sums_in_float32() -> None:
    configure_torch(None, None)
    assert not any(getattr(MATMUL, name) for name in FLAGS)
    assert torch.get_float32_matmul_precision() == "highest"


def test_cores_have_the_gpus_of_their_ranks_one_after_the_other(tmp_path: Path) -> None:
    options = {"device": "cuda", "data_parallel_size": 2, "tensor_parallel_size": 3}
    config = worker_config(write_tiny_model(tmp_path), **options)
    of_ranks = [msgspec.structs.replace(config, core_index=core, rank=rank) for core in range(2) for rank in range(3)]
    assert [str(worker_device(each)) for each in of_ranks] == [f"cuda:{index}" for index in range(6)]


def test_tensors_on_a_cpu_are_arrays_except_for_triton(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path)
    kinds = [type(worker_device(worker_config(model, kernel_backend=name))) for name in ("cpu", "reference", "triton")]
    assert kinds == [HostDevice, HostDevice, TorchDevice]


def test_arrays_go_to_a_device_together() -> None:
    arrays = [np.array([1, -2], np.int32), np.array([], np.float32), np.array([0.5, np.nan], np.float32)]
    assert HostDevice().all_from_host(arrays) is arrays
    tensors = TorchDevice(torch.device("cpu")).all_from_host(arrays)
    for tensor, array in zip(tensors, arrays, strict=True):
        np.testing.assert_array_equal(host_array(tensor), array)
        assert tensor.dtype == getattr(torch, array.dtype.name)
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1


def test_room_on_the_host_is_reused_and_doubles() -> None:
    device = HostDevice()
    room = device.host_room(100, None)
    assert device.host_room(40, room) is room
    assert len(device.host_room(101, room)) == 200


@pytest.mark.parametrize(
    ("device", "backend", "attention_backend", "fits"),
    [
        ("cuda", "triton", "auto", True),
        ("cuda", "triton", "sdpa", False),
        ("cuda", "reference", "triton", False),  # The reference asks which rows are written at all.
        ("cuda", "reference", "auto", False),
        ("cpu", "cpu", "auto", True),
        ("cpu", "cpu", "sdpa", False),
        ("cpu", "reference", "auto", False),
    ],
)
def test_graphs_hold_no_op_that_waits_for_the_device(
    device: str, backend: str, attention_backend: str, fits: bool
) -> None:
    of_device = TorchDevice(torch.device(device))
    attention = load_attention_backend(attention_backend, of_device, backend)
    assert fits_graphs(of_device, select(backend, device), attention) == fits
