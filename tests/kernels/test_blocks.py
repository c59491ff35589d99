"""Block copies, swaps and staging against Python lists of blocks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyllm_kernels import Kernels, select
from pyllm_kernels.ops.blocks import copy_blocks, gather_blocks, scatter_blocks, swap_blocks

NUM_BLOCKS = 6
COPIES = st.lists(st.tuples(st.integers(0, NUM_BLOCKS - 1), st.integers(0, NUM_BLOCKS - 1)), min_size=1, max_size=6)
NUM_HOST_BLOCKS = 4
SWAPS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, NUM_BLOCKS - 1), st.integers(0, NUM_HOST_BLOCKS - 1)), max_size=8
)


def check(kernels: Kernels, copies: list[tuple[int, int]], shape: tuple[int, ...], device: torch.device) -> None:
    key_cache, value_cache = torch.randn((2, NUM_BLOCKS, *shape), device=device)
    keys, values = list(key_cache.clone()), list(value_cache.clone())
    for source, destination in copies:
        keys[destination], values[destination] = keys[source], values[source]
    pairs = torch.tensor(copies, dtype=torch.int32, device=device).view(-1, 2)
    kernels[copy_blocks](key_cache, value_cache, pairs)
    assert torch.equal(key_cache, torch.stack(keys))
    assert torch.equal(value_cache, torch.stack(values))


@pytest.mark.parametrize("shape", [(16, 3, 64), (32, 1, 80), (1, 2, 1)], ids=str)
def test_copies_whole_blocks_of_both_caches(kernels: Kernels, shape: tuple[int, ...], device: torch.device) -> None:
    check(kernels, [(4, 1), (2, 5)], shape, device)


def test_no_copies_change_nothing(kernels: Kernels, device: torch.device) -> None:
    check(kernels, [], (16, 1, 64), device)


@pytest.mark.parametrize("backend", ["reference", "triton"])
@given(copies=COPIES)
def test_copies_happen_one_after_the_other(backend: str, copies: list[tuple[int, int]]) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check(select(backend, device), copies, (4, 1, 8), device)


def check_swaps(
    kernels: Kernels,
    swaps: list[tuple[int, int, int]],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    num_layers, *block = shape
    cache = torch.randn((num_layers, 2, NUM_BLOCKS, *block), device=device).to(dtype)
    host_blocks = torch.randn((NUM_HOST_BLOCKS, num_layers, 2, *block)).to(dtype)
    if device.type == "cuda":
        host_blocks = host_blocks.pin_memory()
    blocks = list(cache.cpu().clone().unbind(2))
    on_host = list(host_blocks.clone())
    for wanted in (0, 1):
        for direction, block_on_device, block_on_host in swaps:
            if direction == wanted == 0:
                on_host[block_on_host] = blocks[block_on_device]
            if direction == wanted == 1:
                blocks[block_on_device] = on_host[block_on_host]
    kernels[swap_blocks](cache, host_blocks, torch.tensor(swaps, dtype=torch.int32).view(-1, 3))
    if device.type == "cuda":
        torch.cuda.synchronize()
    assert torch.equal(cache.cpu(), torch.stack(blocks, dim=2))
    assert torch.equal(host_blocks, torch.stack(on_host))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(2, 16, 3, 64), (3, 32, 1, 80), (1, 1, 2, 1)], ids=str)
@pytest.mark.parametrize(
    "swaps",
    [
        [],
        [(0, 4, 1), (0, 0, 3)],
        [(1, 4, 1), (1, 0, 3)],
        [(0, 2, 1), (1, 2, 3)],  # What goes out makes room for what comes in.
        [(0, 2, 1), (1, 5, 1)],  # What goes out comes in elsewhere.
        [(1, 5, 1), (0, 5, 1), (1, 3, 1)],  # What goes out goes first, wherever it stands.
    ],
    ids=str,
)
def test_swaps_whole_blocks_of_all_layers(
    kernels: Kernels,
    swaps: list[tuple[int, int, int]],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    check_swaps(kernels, swaps, shape, dtype, device)


@pytest.mark.parametrize("backend", ["reference", "triton"])
@given(swaps=SWAPS)
def test_swaps_go_out_first_and_then_come_in(backend: str, swaps: list[tuple[int, int, int]]) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check_swaps(select(backend, device), swaps, (2, 2, 1, 4), torch.float32, device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(2, 16, 3, 64), (3, 1, 2, 5)], ids=str)
@pytest.mark.parametrize("wanted", [[], [4], [5, 0, 3]], ids=str)
def test_blocks_are_staged_and_put_back(
    kernels: Kernels, wanted: list[int], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    num_layers, *block = shape
    cache = torch.randn((num_layers, 2, NUM_BLOCKS, *block)).to(dtype).view(torch.uint8)
    staged = torch.randn((len(wanted), num_layers, 2, *block)).to(dtype).view(torch.uint8)
    # As in a plan: a column of the swaps.
    blocks = torch.tensor([[0, number, 9] for number in wanted], dtype=torch.int32, device=device).view(-1, 3)[:, 1]
    on_device, gathered = cache.to(device), torch.zeros_like(staged, device=device)
    kernels[gather_blocks](on_device.view(dtype), gathered.view(dtype), blocks)
    assert torch.equal(gathered.cpu(), cache[:, :, wanted].movedim(2, 0))
    kernels[scatter_blocks](on_device.view(dtype), staged.to(device).view(dtype), blocks)
    expected = cache.clone()
    expected[:, :, wanted] = staged.movedim(0, 2)
    assert torch.equal(on_device.cpu(), expected)
