"""Low-rank matrices of adapters, added to the output of a linear: every version against its formula in float64; and on
a CPU, that a row depends on itself alone.

As for the linears, bfloat16 in Triton needs a card: Triton 3.9's interpreter gets its `tl.dot` wrong.
"""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from pyllm_kernels import Graph, Kernels, select
from pyllm_kernels.ops.add_lora import LoraMatrices, add_lora
from pyllm_kernels.tensors import Array
from pyllm_kernels.torch_bridge import as_array, as_tensor

from tests.kernels.recurrent_ops import CPU, DTYPES, close, normal, same, threads

# in_features, the parts' columns, max_rank
SHAPES = [(1, (1,), 1), (33, (17,), 5), (64, (96, 32, 32), 8), (70, (33, 129), 16), (576, (576, 192, 192), 16)]
WIDE = (4096, (1536,), 64)


def matrices_of(shape: tuple[int, Sequence[int], int], ranks: Sequence[Sequence[int]], dtype: str) -> LoraMatrices:
    in_features, sizes, max_rank = shape
    adapters, parts = len(ranks), len(sizes)
    down = normal(adapters, parts * max_rank, in_features, seed=1) / in_features**0.5
    up = normal(adapters, max_rank, sum(sizes), seed=2) / max_rank**0.5
    like = normal(1, dtype=dtype).dtype
    return LoraMatrices(down.astype(like), up.astype(like), np.array(ranks, np.int32), tuple(sizes))


def ranks_of(shape: tuple[int, Sequence[int], int], adapters: int) -> list[list[int]]:
    """Ranks from 0 to the largest, which the first adapter has in each part."""
    _, sizes, max_rank = shape
    return [
        [max(max_rank - 3 * adapter - part * (adapter > 0), 0) for part in range(len(sizes))]
        for adapter in range(adapters)
    ]


def mixed(tokens: int, adapters: int) -> Array:
    """Tokens without an adapter, runs of one adapter, and adapters in turn."""
    runs = np.repeat(np.arange(-1, adapters), 7)
    return np.resize(np.concatenate((runs, np.arange(-1, adapters))), tokens).astype(np.int32)


def expected_of(x: Array, out: Array, adapters: Array, matrices: LoraMatrices) -> Array:
    """The formula, token by token and in float64."""
    total = out.astype(np.float64)
    max_rank = matrices.up.shape[1]
    for token, adapter in enumerate(adapters[: len(x)]):
        end = 0
        for part, size in enumerate(matrices.sizes):
            start, end = end, end + size
            rank = int(matrices.ranks[adapter, part]) if adapter >= 0 else 0
            down = matrices.down[adapter, part * max_rank :][:rank].astype(np.float64)
            up = matrices.up[adapter, :rank, start:end].astype(np.float64)
            total[token, start:end] += (down @ x[token].astype(np.float64)) @ up
    return total


def in_columns(rows: Array) -> tuple[Array, Array]:
    """A wider matrix, and a copy of the rows in some columns of it."""
    wide = np.full((len(rows), rows.shape[1] + 9), 3, rows.dtype)
    wide[:, 4:-5] = rows
    return wide, wide[:, 4:-5]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_it_is_the_formula(kernels: Kernels, shape: tuple[int, Sequence[int], int], tokens: int, dtype: str) -> None:
    if kernels.backend == "triton" and dtype == "bfloat16" and not torch.cuda.is_available():
        dtype = "float16"
    matrices, adapters = matrices_of(shape, ranks_of(shape, 3), dtype), mixed(tokens, 3)[::-1].copy()
    x, before = normal(tokens, shape[0], dtype=dtype), normal(tokens, sum(shape[1]), dtype=dtype, seed=3)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wide, _ = in_columns(before)
    outer = as_tensor(wide).to(device)
    out = outer[:, 4:-5]
    on_device = LoraMatrices(
        *(as_tensor(table).to(device) for table in (matrices.down, matrices.up, matrices.ranks)), matrices.sizes
    )
    assert kernels[add_lora](as_tensor(x).to(device), out, as_tensor(adapters).to(device), on_device) is out
    expected = expected_of(x, before, adapters, matrices)
    close(as_array(out), expected, dtype)
    alone = adapters < 0
    assert same(as_array(out)[alone], before[alone]), "a token without an adapter stays as it is"
    around = as_array(outer)
    assert (around[:, :4] == 3).all()
    assert (around[:, -5:] == 3).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_is_the_same_alone_in_any_order_and_on_any_threads(
    shape: tuple[int, Sequence[int], int], dtype: str
) -> None:
    tokens = 61
    matrices, adapters = matrices_of(shape, ranks_of(shape, 4), dtype), mixed(tokens, 4)
    x, before = normal(tokens, shape[0], dtype=dtype), normal(tokens, sum(shape[1]), dtype=dtype, seed=3)
    expected = CPU[add_lora](x, before.copy(), adapters, matrices)
    assert not same(expected, before)
    for token in range(tokens):
        row = slice(token, token + 1)
        assert same(CPU[add_lora](x[row], before[row].copy(), adapters[row], matrices), expected[row])
    order = np.random.default_rng(5).permutation(tokens)
    for count in (2, 3):
        with threads(count):
            ours = CPU[add_lora](x[order], before[order], adapters[order], matrices)
            assert same(ours, expected[order])


def test_wide_layers_are_the_formula_on_any_threads() -> None:
    matrices, adapters = (
        matrices_of(WIDE, [[64], [9]], "bfloat16"),
        np.repeat([0, -1, 1], [100, 3, 1]).astype(np.int32),
    )
    x, before = normal(104, WIDE[0], dtype="bfloat16"), normal(104, *WIDE[1], dtype="bfloat16")
    expected = CPU[add_lora](x, before.copy(), adapters, matrices)
    close(expected, expected_of(x, before, adapters, matrices), "bfloat16")
    for count in (2, 3):
        with threads(count):
            assert same(CPU[add_lora](x, before.copy(), adapters, matrices), expected)
    for token in (0, 99, 103):
        row = slice(token, token + 1)
        assert same(CPU[add_lora](x[row], before[row].copy(), adapters[row], matrices), expected[row])


def test_a_graph_reads_the_tables_at_each_replay() -> None:
    shape, tokens = SHAPES[2], 40
    matrices, adapters = matrices_of(shape, ranks_of(shape, 3), "float32"), mixed(tokens, 3)
    other = matrices_of(shape, [[2, 0, 8], [8, 8, 1], [0, 0, 0]], "float32")
    x, before, graph = normal(tokens, shape[0]), normal(tokens, sum(shape[1]), seed=3), Graph()
    out = before.copy()
    with graph.capture():
        assert CPU[add_lora](x, out, adapters, matrices) is out
    assert graph.num_ops == 1
    assert same(out, before), "a capture computes nothing"
    for count in (tokens, 1, 17):
        out[...] = before
        expected = CPU[add_lora](x[:count], before[:count].copy(), adapters[:count], matrices)
        graph.replay(count, 0)
        assert same(out[:count], expected)
        assert same(out[count:], before[count:])
    matrices.ranks[...] = other.ranks
    matrices.down[0], matrices.up[2] = 2 * matrices.down[0], -matrices.up[2]
    adapters[...] = adapters[::-1].copy()
    out[...] = before
    graph.replay(tokens, 0)
    close(out, expected_of(x, before, adapters, matrices))


def test_a_step_without_adapters_or_tokens_changes_nothing() -> None:
    shape = SHAPES[1]
    matrices, before = matrices_of(shape, [[5]], "float16"), normal(6, 17, dtype="float16")
    x, none = np.full((6, 33), np.nan, before.dtype), np.full(6, -1, np.int32)
    assert same(CPU[add_lora](x, before.copy(), none, matrices), before)
    assert CPU[add_lora](x[:0], before[:0].copy(), none[:0], matrices).shape == (0, 17)
    matrices.ranks[...] = 0
    assert same(CPU[add_lora](x, before.copy(), none + 1, matrices), before)


def test_indices_are_checked_at_every_replay() -> None:
    shape, graph = SHAPES[2], Graph()
    matrices, adapters = matrices_of(shape, ranks_of(shape, 2), "float32"), np.zeros(4, np.int32)
    x, out = normal(4, shape[0]), normal(4, sum(shape[1]))
    with graph.capture():
        CPU[add_lora](x, out, adapters, matrices)
    before = out.copy()
    for array, number, message in (
        (adapters, 2, "adapter of token 3 is 2: it must be from -1 to 1"),
        (adapters, -2, "adapter of token 3 is -2: it must be from -1 to 1"),
        (matrices.ranks.reshape(-1), 9, "rank of the adapters' parts 5 is 9: it must be from 0 to 8"),
        (matrices.ranks.reshape(-1), -1, "rank of the adapters' parts 5 is -1: it must be from 0 to 8"),
    ):
        kept = int(array[-1])
        array[-1] = number
        with pytest.raises(IndexError, match=message):
            graph.replay(4, 0)
        with pytest.raises(IndexError, match=message):
            CPU[add_lora](x, out, adapters, matrices)
        assert same(out, before)
        array[-1] = kept
        out[...] = before
    graph.replay(4, 0)
    assert not same(out, before)


def test_what_does_not_fit_is_refused() -> None:
    shape = SHAPES[2]
    matrices, adapters = matrices_of(shape, ranks_of(shape, 2), "float32"), np.zeros(4, np.int32)
    x, out = normal(4, 64), normal(4, 160)
    down, up, ranks, sizes = matrices.down, matrices.up, matrices.ranks, matrices.sizes
    for wrong, message in (
        ((x, out[:, :159], adapters, matrices), r"out is of shape \[4, 159\]: it must be of \[4, 160\]"),
        ((x[:, :63].copy(), out, adapters, matrices), r"down is of shape \[2, 24, 64\]: it must be of \[2, 24, 63\]"),
        ((x, out.astype(np.float16), adapters, matrices), "out is float16: give float32"),
        ((x, out, adapters[:3], matrices), "adapters of 3 tokens, and x has 4"),
        ((x, out, adapters.astype(np.int64), matrices), "adapters is int64: give int32"),
        ((x, out, adapters, LoraMatrices(down, up, ranks, (96, 64))), r"down is of shape \[2, 24, 64\]: it must be of"),
        (
            (x, out, adapters, LoraMatrices(down, up, ranks, (96, 32, 31))),
            r"up has 160 columns, and the parts \[96, 32",
        ),
        ((x, out, adapters, LoraMatrices(down, up[::-1], ranks, sizes)), "up is of shape .*: give a contiguous array"),
        ((x, out, adapters, LoraMatrices(down, up, ranks[:1], sizes)), r"ranks is of shape \[1, 3\]: it must be of"),
    ):
        with pytest.raises(ValueError, match=message):
            CPU[add_lora](*wrong)


def test_triton_computes_a_row_alone_as_among_others(device: torch.device) -> None:
    triton, shape = select("triton", device), SHAPES[3]
    matrices, adapters = matrices_of(shape, ranks_of(shape, 3), "float32"), mixed(40, 3)
    on_device = LoraMatrices(
        *(as_tensor(table).to(device) for table in (matrices.down, matrices.up, matrices.ranks)), matrices.sizes
    )
    x, before = (as_tensor(normal(40, width)).to(device) for width in (shape[0], sum(shape[1])))
    owners = as_tensor(adapters).to(device)
    together = triton[add_lora](x, before.clone(), owners, on_device)
    for token in (0, 8, 23, 39):
        row = slice(token, token + 1)
        alone = triton[add_lora](x[row].contiguous(), before[row].clone(), owners[row].contiguous(), on_device)
        assert torch.equal(alone, together[row])
