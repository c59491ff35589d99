"""Blocks of a cache as bytes: what was read from one comes back into another, and touches nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from pyllm_kernels.host_copies import fill, host_array

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.workers.devices.device import Device
from pyllm.workers.devices.host import HostDevice
from pyllm.workers.devices.torch_device import TorchDevice
from pyllm.workers.kv.gpu_blocks import GpuBlocks
from pyllm.workers.kv.kv_blocks import CpuBlocks
from pyllm.workers.kv.kv_cache import KVCache, KVCacheShape
from pyllm.workers.kv.state_cache import StateCache


class FakeCuda:
    """Streams and events of a GPU that does everything at once, in the order in which it is asked."""

    class Stream:
        def __init__(self, device: Any) -> None:
            self.waited_for: list[Any] = []

        def wait_event(self, event: Any) -> None:
            self.waited_for.append(event)

        def synchronize(self) -> None:
            """Nothing is under way."""

    class Event:
        num_records = 0

        def record(self, stream: Any) -> None:
            self.num_records += 1

    def current_stream(self, device: Any) -> None:
        return None

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        yield


def random_cache(dtype: str, num_blocks: int, device: Device) -> KVCache:
    cache = KVCache(KVCacheShape(3, 4, 2, 8, dtype), num_blocks, device)
    fill(cache.memory, np.random.default_rng(0).standard_normal(cache.memory.shape, np.float32))
    return cache


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_are_copied_whole_and_alone(kind: str, dtype: str) -> None:
    def blocks_of(cache: KVCache) -> CpuBlocks | GpuBlocks:
        return CpuBlocks(cache) if kind == "cpu" else GpuBlocks(cache, FakeCuda())

    device = HostDevice() if kind == "cpu" else TorchDevice(torch.device("cpu"))
    caches = [random_cache(dtype, size, device) for size in (6, 7)]
    source, target = caches
    there, here = (host_array(cache.memory) for cache in caches)
    before = here.copy()
    reader, writer = blocks_of(source), blocks_of(target)
    assert reader.block_bytes == KVCacheShape(3, 4, 2, 8, dtype).block_bytes
    buffers = [memoryview(bytearray(reader.block_bytes)) for _ in range(2)]
    reader.begin()
    reader.read([4, 1], buffers)
    writer.write([0, 5], buffers)
    assert np.array_equal(here[:, :, 0], there[:, :, 4])
    assert np.array_equal(here[:, :, 5], there[:, :, 1])
    others = [1, 2, 3, 4, 6]
    assert np.array_equal(here[:, :, others], before[:, :, others])


def test_a_state_is_as_many_blocks_as_it_fills_and_comes_back_whole(model: str) -> None:
    shape = KVCacheShape(1, 4, 1, 2, "float32")
    cache = KVCache(shape, 3, HostDevice())
    states = StateCache(read_checkpoint(model).spec, 1, (), 0, HostDevice())
    parts = tuple(np.random.default_rng(3).random((4, *size), np.float32) for size in ((3, 5), (2, 7), (1,)))
    states.layers = {0: parts[:2], 2: parts[2:]}
    before = [part.copy() for part in parts]
    num_pieces = -(-30 * 4 // shape.block_bytes)
    blocks = CpuBlocks(cache, states, num_pieces)
    numbers = [3 + 2 * num_pieces + piece for piece in range(num_pieces)]
    buffers = [memoryview(bytearray(b"\xff" * blocks.block_bytes)) for _ in numbers]
    blocks.read(numbers, buffers)
    whole = b"".join(buffers)
    assert whole[: 30 * 4] == b"".join(part[2].tobytes() for part in before)
    assert not any(whole[30 * 4 :])
    for part in parts:
        part[:] = 0
    blocks.write([3 + piece for piece in range(num_pieces)], buffers)
    for part, was in zip(parts, before, strict=True):
        assert (part[0] == was[2]).all()
        assert not part[1:].any()
