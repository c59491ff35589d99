"""Real processes share a disk store and are killed: no wrong block, no byte too many, nothing left behind."""

import os
import random
import signal
import traceback
from pathlib import Path

import pytest

from pyllm.kv_transfer.stores.disk_store import DiskStore
from tests.kv_transfer.stores.blocks import load, lookup, save
from tests.kv_transfer.stores.mortal_files import MortalFiles

CAPACITY = 64 << 10
NUM_KILLS = 12  # in pairs that run at once
NUM_BLOCKS = 150


def start(folder: Path, seed: int, num_operations: int) -> int:
    """The id of a process that saves and loads blocks at random until it is killed; by exit code 1 it found a fault."""
    process = os.fork()
    if process:
        return process
    try:
        store = DiskStore(folder, CAPACITY, MortalFiles(num_operations))
        draw = random.Random(seed)
        while True:
            first = draw.randrange(NUM_BLOCKS)
            save(store, range(first, first + 10), draw.choice(("default", "long")))
            load(store, draw.sample(range(NUM_BLOCKS), 20))
    finally:
        traceback.print_exc()
        os._exit(1)


@pytest.mark.parametrize("num_kills", [NUM_KILLS])
def test_kills(tmp_path: Path, num_kills: int) -> None:
    draw = random.Random(1)
    survivor = DiskStore(tmp_path, CAPACITY)
    num_loaded = 0
    for seed in range(num_kills // 2):
        children = [start(tmp_path, 2 * seed + each, draw.randint(1, 150)) for each in range(2)]
        for child in children:
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status)
            assert os.WTERMSIG(status) == signal.SIGKILL
        num_loaded += len(load(survivor, range(NUM_BLOCKS)))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= CAPACITY + 8
    assert num_loaded > 50
    # What the dead have left is taken over: new blocks fill the store, and each is found.
    assert save(survivor, range(1000, 1500)) == [True] * 500
    found = lookup(survivor, range(1000, 1500))
    assert found == list(range(found[0], 1500))
    assert len(found) >= 50
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= CAPACITY + 8
    survivor.close()
