"""Blocks of a cache as bytes: what was read from one comes back into another, and touches nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from pyllm.workers.kv.kv_blocks import CpuBlocks, GpuBlocks
from pyllm.workers.kv.kv_cache import KVCache, KVCacheShape


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


def random_cache(dtype: torch.dtype, num_blocks: int) -> KVCache:
    cache = KVCache(KVCacheShape(3, 4, 2, 8, dtype), num_blocks, torch.device("cpu"))
    cache.memory.copy_(torch.randn(cache.memory.shape))
    return cache


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_are_copied_whole_and_alone(kind: str, dtype: torch.dtype) -> None:
    def blocks_of(cache: KVCache) -> CpuBlocks | GpuBlocks:
        return CpuBlocks(cache) if kind == "cpu" else GpuBlocks(cache, FakeCuda())

    torch.manual_seed(0)
    source, target = random_cache(dtype, 6), random_cache(dtype, 7)
    before = target.memory.clone()
    reader, writer = blocks_of(source), blocks_of(target)
    assert reader.block_bytes == KVCacheShape(3, 4, 2, 8, dtype).block_bytes
    buffers = [memoryview(bytearray(reader.block_bytes)) for _ in range(2)]
    reader.begin()
    reader.read([4, 1], buffers)
    writer.write([0, 5], buffers)
    assert torch.equal(target.memory[:, :, 0], source.memory[:, :, 4])
    assert torch.equal(target.memory[:, :, 5], source.memory[:, :, 1])
    others = [1, 2, 3, 4, 6]
    assert torch.equal(target.memory[:, :, others], before[:, :, others])
