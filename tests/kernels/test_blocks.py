"""Block copies against a Python list of blocks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyllm_kernels import Kernels, select

NUM_BLOCKS = 6
COPIES = st.lists(st.tuples(st.integers(0, NUM_BLOCKS - 1), st.integers(0, NUM_BLOCKS - 1)), min_size=1, max_size=6)


def check(kernels: Kernels, copies: list[tuple[int, int]], shape: tuple[int, ...], device: torch.device) -> None:
    key_cache, value_cache = torch.randn((2, NUM_BLOCKS, *shape), device=device)
    keys, values = list(key_cache.clone()), list(value_cache.clone())
    for source, destination in copies:
        keys[destination], values[destination] = keys[source], values[source]
    pairs = torch.tensor(copies, dtype=torch.int32, device=device).view(-1, 2)
    kernels.copy_blocks(key_cache, value_cache, pairs)
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
