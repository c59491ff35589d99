"""A check that swaps beside steps leave the same bytes as swaps one after another. Needs pyllm itself."""

import random
from collections.abc import Iterator

import numpy as np
import torch
from pyllm_kernels.ops.blocks import swap_blocks

from benchmarks.gpu.checks import Pairs, Setting
from benchmarks.gpu.worker_steps import no_synchronisation
from pyllm.workers.kv.swap_stream import SwapStream
from pyllm.workers.step.batch import IntArray
from tests.workers.kv.fake_streams import FakeStreams

_NUM_BLOCKS, _HOST_BLOCKS = 24, 32
_MAX_SWAPS, _NUM_STAGED = 9, 4


def same_bytes(setting: Setting) -> Pairs:
    """The bytes that each step's forward pass reads, and the final bytes; no step waits for the one before.

    A forward pass is a product that takes longer than small copies, and writes to all swapped-out blocks.
    """
    on_card = setting.device.type == "cuda"
    cache = setting.randn(2, 2, _NUM_BLOCKS, 16, 2, 64)
    host_blocks = torch.randn((_HOST_BLOCKS, 2, 2, 16, 2, 64), dtype=setting.dtype, pin_memory=on_card)
    expected, expected_host = cache.cpu().clone(), host_blocks.clone()
    stream = SwapStream(cache, host_blocks, setting.triton, _NUM_STAGED, torch.cuda if on_card else FakeStreams())
    size, num_steps = (64, 4) if setting.small else (4096, 60)
    weight, numbers = setting.randn(size, size), setting.randn(num_steps, 16, 2, 64)
    swaps = list(_swaps(random.Random(0), num_steps))
    on_device = [torch.from_numpy(some).to(setting.device) for some in swaps]
    read = torch.empty((num_steps, *cache.shape), dtype=cache.dtype, device=cache.device)
    with no_synchronisation(on_card):
        for step, some in enumerate(swaps):
            stream.swap(some, on_device[step])
            read[step] = cache
            torch.mm(weight, weight)
            for block in _written(some):
                cache[:, :, block] = numbers[step]
    if on_card:
        torch.cuda.synchronize(setting.device)
    pairs = []
    for step, some in enumerate(swaps):
        setting.reference[swap_blocks](expected, expected_host, torch.from_numpy(some))
        pairs.append((read[step], expected.clone()))
        for block in _written(some):
            expected[:, :, block] = numbers[step].cpu()
    return [*pairs, (cache, expected), (host_blocks, expected_host)]


def _swaps(generator: random.Random, num_steps: int) -> Iterator[IntArray]:
    """The swaps of each step, which write to no block twice."""
    for _ in range(num_steps):
        num_out, num_in = generator.randint(0, _MAX_SWAPS), generator.randint(0, _MAX_SWAPS)
        outs = zip(_some(generator, _NUM_BLOCKS, num_out), _some(generator, _HOST_BLOCKS, num_out), strict=True)
        ins = zip(_some(generator, _NUM_BLOCKS, num_in), _some(generator, _HOST_BLOCKS, num_in), strict=True)
        moves = [(0, *move) for move in outs] + [(1, *move) for move in ins]
        yield np.array(moves, np.int32).reshape(-1, 3)


def _some(generator: random.Random, size: int, number: int) -> list[int]:
    return generator.sample(range(size), number)


def _written(swaps: IntArray) -> list[int]:
    written: list[int] = swaps[swaps[:, 0] == 0, 1].tolist()
    return written
