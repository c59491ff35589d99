"""Host blocks of a rank: whose memory they are in, and which ranks and settings may read what is there."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from pyllm.config.process_config import WorkerConfig
from pyllm.families.kv_layout import KVGroup
from pyllm.workers.kv.host_blocks import HostBlocks, open_host_blocks
from pyllm.workers.kv.kv_cache import KVCacheShape
from tests.tiny_model import write_tiny_model
from tests.workers.engine import worker_config

SHAPE = KVCacheShape(num_layers=2, block_size=4, num_kv_heads=2, head_dim=8, dtype="float32")
# As many bytes, of other layers.
OTHER_SHAPE = KVCacheShape(num_layers=4, block_size=2, num_kv_heads=2, head_dim=8, dtype="float32")
GROUPS = (KVGroup(None, (0, 1), (2, 8)),)
SIZE = {"kv_offloading_size": f"{SHAPE.block_bytes * 8 // 1024}KiB"}


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("blocks")
    yield descriptor
    os.close(descriptor)


def opened(config: WorkerConfig, descriptor: int | None, **changes: Any) -> HostBlocks:
    asked = {"shape": SHAPE, "groups": GROUPS, "arithmetic": "avx2 cpu"} | changes
    return open_host_blocks(config, **asked, descriptor=descriptor)


def fill(blocks: HostBlocks) -> bytes:
    """One block with a name; gives what the next worker is to find."""
    assert blocks.tier is not None
    blocks.inventory()
    number, name = np.array([3], np.int32), bytes([7] * 32 + [0] * 8)
    blocks.tier.finish(number, np.frombuffer(name, np.uint8), blocks.tier.begin(number))
    return b"\3\0\0\0" + name


def test_the_same_rank_of_the_same_engine_finds_what_was_there_and_no_other(model: str, memory: int) -> None:
    config = worker_config(model, **SIZE)
    first = opened(config, memory)
    assert first.num_blocks == 8
    found = fill(
        first
    )  # Only when it has looked at the memory, as two that look at once would find each other's writes.
    assert opened(config, memory).inventory() == found
    checkpoint = msgspec.structs.replace(config.checkpoint, fingerprint="of other weights")
    for other, changes in (
        (msgspec.structs.replace(config, checkpoint=checkpoint), {}),
        (worker_config(model, rank=1, **SIZE), {}),
        (worker_config(model, **SIZE, prefix_hash="sha256_cbor"), {}),
        (worker_config(model, **SIZE, sparse_attention="quest"), {}),
        (config, {"arithmetic": "avx512 cpu"}),
        (config, {"groups": (KVGroup(8, (0, 1), (2, 8)),)}),
        (config, {"shape": OTHER_SHAPE}),
    ):
        assert opened(other, memory, **changes).inventory() == b"", changes
        found = fill(opened(config, memory))
        assert opened(config, memory).inventory() == found


def test_what_weights_gave_that_were_replaced_since_is_not_found(tmp_path: Path, memory: int) -> None:
    config = worker_config(write_tiny_model(tmp_path), **SIZE)
    found = fill(opened(config, memory))
    assert opened(config, memory).inventory() == found
    (file,) = map(Path, config.checkpoint.files)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1  # Behind what the checkpoint's fingerprint covers.
    (tmp_path / "new").write_bytes(content)
    (tmp_path / "new").replace(file)
    assert opened(config, memory).inventory() == b""


def test_what_is_forgotten_or_in_memory_of_our_own_is_not_found(model: str, memory: int) -> None:
    config = worker_config(model, **SIZE)
    blocks = opened(config, memory)
    fill(blocks)
    blocks.forget()
    assert opened(config, memory).inventory() == b""
    private = opened(config, None)
    private.forget()
    assert (private.num_blocks, private.tier, private.inventory()) == (8, None, b"")
    assert opened(worker_config(model), memory).tier is None, "there is no host pool"
