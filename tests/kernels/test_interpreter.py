"""Products in Triton's interpreter are what a card gives: a row's sums do not depend on how many rows there are."""

import pytest
import torch
import triton
from triton import language as tl


@triton.jit
def _product(a, b, c, out, m: tl.constexpr, n: tl.constexpr, k: tl.constexpr):  # type: ignore[no-untyped-def]
    rows, columns, inner = tl.arange(0, m), tl.arange(0, n), tl.arange(0, k)
    left = tl.load(a + rows[:, None] * k + inner[None, :])
    right = tl.load(b + inner[:, None] * n + columns[None, :])
    place = rows[:, None] * n + columns[None, :]
    tl.store(out + place, tl.dot(left, right, tl.load(c + place), input_precision="ieee", out_dtype=c.dtype.element_ty))


def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(c)
    _product[(1,)](a, b, c, out, a.shape[0], b.shape[1], a.shape[1])
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_row_is_the_sum_over_k_in_order(dtype: torch.dtype) -> None:
    a, b, c = torch.randn(128, 64).to(dtype), torch.randn(64, 32).to(dtype), torch.randn(128, 32)
    expected = c.clone()
    for k in range(64):
        expected += a[:, k, None].float() * b[k].float()
    assert torch.equal(product(a, b, c), expected)
    for rows in (slice(0, 1), slice(3, 5), slice(64, 128)):
        assert torch.equal(product(a[rows].contiguous(), b, c[rows].contiguous()), expected[rows])


def test_integers_and_floats_of_eight_bits() -> None:
    a, b = torch.randint(-128, 128, (16, 64), dtype=torch.int8), torch.randint(-128, 128, (64, 16), dtype=torch.int8)
    assert torch.equal(product(a, b, torch.zeros(16, 16, dtype=torch.int32)), a.int() @ b.int())
    small, other = torch.randn(16, 64).to(torch.float8_e4m3fn), torch.randn(64, 16).to(torch.float8_e4m3fn)
    assert torch.allclose(product(small, other, torch.zeros(16, 16)), small.float() @ other.float(), atol=1e-4)
