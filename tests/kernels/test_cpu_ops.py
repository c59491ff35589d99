"""Norm, activation, block copies and sampling on a CPU: what the tests of all backends leave open."""

import itertools

import pyllm_kernels
import pytest
import torch
from pyllm_kernels import KVScales, QKNorm, select
from pyllm_kernels.ops.activation import activation
from pyllm_kernels.ops.blocks import copy_blocks
from pyllm_kernels.ops.elementwise import add, add_bias, scale_and_cap
from pyllm_kernels.ops.norm import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from pyllm_kernels.ops.rope_and_kv_write import rope_and_kv_write
from pyllm_kernels.ops.sample import sample
from torch import Tensor

KERNELS, REFERENCE = select("cpu", "cpu"), select("reference", "cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# A sum's order, an exponential's last unit; half a unit of bfloat16 or float16.
RELATIVE = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}
TOLERANCE = {dtype: {"atol": 1e-6, "rtol": relative} for dtype, relative in RELATIVE.items()}
# An error function's last units, times x and the gate.
GATE_TOLERANCE = {dtype: {"atol": 5e-5, "rtol": relative} for dtype, relative in RELATIVE.items()}
KINDS = ["silu", "gelu", "gelu_tanh"]
WIDTHS = [1, 15, 16, 17, 63, 64, 65, 576, 1000]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_norms_of_any_width(width: int, dtype: torch.dtype, weight_dtype: torch.dtype) -> None:
    x, residual = torch.randn(2, 3, width).to(dtype)
    weight = torch.randn(width).to(weight_dtype)
    expected, total = REFERENCE[add_rms_norm](x, residual, weight, 1e-5)
    output, stream = KERNELS[add_rms_norm](x, residual, weight, 1e-5)
    assert torch.equal(stream, total)
    torch.testing.assert_close(output, expected, **TOLERANCE[dtype])
    assert torch.equal(KERNELS[rms_norm](total, weight, 1e-5), output)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_gates_of_any_width(width: int, dtype: torch.dtype) -> None:
    x = (torch.randn(3, 2 * width) * 5).to(dtype)
    for kind, gated in itertools.product(KINDS, (False, True)):
        expected = REFERENCE[activation](x, kind, gated)
        torch.testing.assert_close(KERNELS[activation](x, kind, gated), expected, **GATE_TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("other_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norms_and_biases_of_any_width(width: int, dtype: torch.dtype, other_dtype: torch.dtype) -> None:
    x, residual = (torch.randn(2, 3, width) * 2 + 0.5).to(dtype)
    weight = torch.randn(width).to(other_dtype)
    expected, total = REFERENCE[add_layer_norm](x, residual, weight, 1e-5, 0.5)
    output, stream = KERNELS[add_layer_norm](x, residual, weight, 1e-5, 0.5)
    assert torch.equal(stream, total)  # Halves are exact.
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=TOLERANCE[dtype]["rtol"])
    assert torch.equal(KERNELS[layer_norm](total, weight, 1e-5), output)
    assert torch.equal(KERNELS[add](x, residual, 0.5), total)
    biased = REFERENCE[add_bias](x.clone(), weight)
    assert torch.equal(KERNELS[add_bias](x.clone(), weight), biased)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cache_dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("head_dim", "rotary_size"), [(16, 16), (48, 20), (33, 2), (7, 0)])
def test_heads_of_any_dtype_and_size(
    head_dim: int, rotary_size: int, dtype: torch.dtype, weight_dtype: torch.dtype, cache_dtype: torch.dtype
) -> None:
    norm = QKNorm(*(torch.rand(2, head_dim) + 0.5).to(weight_dtype), epsilon=1e-5)
    angles, query_scales = torch.randn(9, rotary_size // 2), torch.rand(9) + 0.5
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions, cells = torch.tensor([[3, 0, 8], [5, -1, 2]], dtype=torch.int32)
    qkv = torch.randn(3, 8, head_dim).to(dtype)
    for of_heads, of_queries in ((norm, query_scales), (None, query_scales), (norm, None)):
        results = []
        for kernels in (KERNELS, REFERENCE):
            query, key, value = qkv.clone().split([4, 2, 2], dim=1)
            caches = torch.zeros(2, 3, 2, 2, head_dim, dtype=cache_dtype)
            tensors = query, key, value, positions, cos_sin, cells, *caches
            kernels[rope_and_kv_write](*tensors, of_heads, KVScales(), of_queries)
            results.append((query, key, value, caches))
        # A number normed to the other side of a halfway point is rotated into others.
        tolerance = {"atol": 1e-5 if dtype is torch.float32 is cache_dtype else 4e-2, "rtol": 1e-2}
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, **tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_are_the_same_alone_and_on_any_threads(dtype: torch.dtype) -> None:
    x, residual = torch.randn(2, 200, 1536).to(dtype)
    weight = torch.randn(1536).to(dtype)

    def results(rows: slice) -> list[Tensor]:
        return [
            *KERNELS[add_rms_norm](x[rows], residual[rows], weight, 1e-5, 0.3),
            *KERNELS[add_layer_norm](x[rows], residual[rows], weight, 1e-5, 0.3),
            *(KERNELS[activation](x[rows], kind, gated) for kind in KINDS for gated in (False, True)),
            KERNELS[scale_and_cap](KERNELS[add_bias](x[rows].clone(), weight), 0.7, 3.0),
        ]

    together = results(slice(None))
    before = pyllm_kernels.num_threads()
    try:
        for num_threads in (1, 2, 3):
            pyllm_kernels.set_num_threads(num_threads)
            assert all(map(torch.equal, results(slice(None)), together))
            for row in (0, 77, 199):
                alone = results(slice(row, row + 1))
                assert all(torch.equal(a, b[row : row + 1]) for a, b in zip(alone, together, strict=True))
    finally:
        pyllm_kernels.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_tokens_are_no_work(dtype: torch.dtype) -> None:
    empty = torch.empty(0, 8, dtype=dtype)
    assert KERNELS[rms_norm](empty, torch.ones(8, dtype=dtype), 1e-5).shape == (0, 8)
    assert KERNELS[activation](empty, "silu").shape == (0, 4)
    assert KERNELS[add](empty, empty).shape == (0, 8)
    assert KERNELS[scale_and_cap](empty, 2.0).shape == (0, 8)
    assert greedy(empty).shape == (0,)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_blocks_are_copied_in_order(dtype: torch.dtype) -> None:
    caches = torch.randn(2, 5, 4, 2, 8).to(dtype)
    copies = torch.tensor([[0, 3], [3, 1], [4, 4]], dtype=torch.int32)
    expected = caches.clone()
    REFERENCE[copy_blocks](*expected, copies)
    KERNELS[copy_blocks](*caches, copies)
    assert torch.equal(caches, expected)
    # A cache of latents has the values in its keys; each copy is still made once.
    latents, before = caches[0], caches[0].clone()
    KERNELS[copy_blocks](latents, latents, torch.tensor([[0, 1], [2, 0]], dtype=torch.int32))
    assert torch.equal(latents[:3], before[[2, 0, 2]])
    with pytest.raises(IndexError, match="number of the copies 1 is 5: it must be from 0 to 4"):
        KERNELS[copy_blocks](*caches, torch.tensor([[0, 5]], dtype=torch.int32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_greedy_samples_are_the_first_of_the_greatest(dtype: torch.dtype) -> None:
    logits = torch.randint(-9, 9, (40, 5000)).to(dtype)
    expected = logits.argmax(-1).to(torch.int32)
    assert torch.equal(greedy(logits), expected)
    rows = torch.randint(40, (70,), dtype=torch.int32)
    assert torch.equal(greedy(logits, rows), expected[rows])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_samples_may_share_a_row_and_logits_lie_apart(dtype: torch.dtype) -> None:
    wide = torch.randn(3, 900).to(dtype)
    rows = torch.tensor([2, 0, 2, 1], dtype=torch.int32)
    temperature, top_k, top_p = torch.tensor([1.0, 0.0, 0.7, 1.0]), torch.tensor([0, 0, 5, 0]), torch.ones(4)
    arguments = temperature, top_k.to(torch.int32), top_p, torch.zeros(4), torch.rand(4)
    expected = sample(wide[:, :777].contiguous()[rows], *arguments)
    assert torch.equal(sample(wide[:, :777], *arguments, rows), expected)


def test_what_a_pointer_cannot_say_is_checked() -> None:
    x = torch.randn(4, 8)
    with pytest.raises(ValueError, match=r"strides \[1, 8\]: give contiguous rows"):
        KERNELS[activation](x.T, "silu")
    with pytest.raises(ValueError, match=r"weight is of shape \[4\]: it must be of \[8\]"):
        KERNELS[layer_norm](x, torch.ones(4), 1e-5)
    with pytest.raises(ValueError, match=r"residual is bfloat16: give float32"):
        KERNELS[add_rms_norm](x, x.bfloat16(), torch.ones(8), 1e-5)
    with pytest.raises(ValueError, match="x is 7 wide: it must be a gate and as much to multiply it with"):
        KERNELS[activation](x[:, :7], "silu")
    with pytest.raises(ValueError, match='no activation "mish": use silu, gelu, gelu_tanh, relu or relu2'):
        KERNELS[activation](x, "mish")
    with pytest.raises(ValueError, match=r"bias is of shape \[4\]: it must be of \[8\]"):
        KERNELS[add_bias](x, torch.ones(4))
    heads, cache, ints = x.view(4, 1, 8), torch.zeros(1, 4, 1, 8), torch.zeros(4, dtype=torch.int32)
    for rotary_size in (3, 10):
        with pytest.raises(ValueError, match=f"{rotary_size} dimensions of heads of 8 cannot be rotated in pairs"):
            KERNELS[rope_and_kv_write](heads, heads, heads, ints, torch.ones(1, rotary_size), ints, cache, cache)
    with pytest.raises(IndexError, match="row of sample 0 is 4: it must be from 0 to 3"):
        greedy(x, ints[:1] + 4)
    with pytest.raises(ValueError, match=r"top_k is float32: give int32"):
        sample(x, *torch.ones(5, 4))
    with pytest.raises(ValueError, match=r"min_p is of shape \[3\]: it must be of \[4\]"):
        sample(x, torch.ones(4), ints, torch.ones(4), torch.zeros(3), torch.zeros(4))


def greedy(logits: Tensor, rows: Tensor | None = None) -> Tensor:
    """A sample of each row, or of some of them, at temperature 0."""
    zeros = torch.zeros(len(logits if rows is None else rows))
    return sample(logits, zeros, zeros.to(torch.int32), zeros + 1, zeros, zeros, rows)
