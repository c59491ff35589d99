"""int8 weights against float64 and bitwise against their torch twin, odd shapes included."""

import pytest
import torch
from pyllm_kernels import Kernels, select
from pyllm_kernels.cards import Card
from pyllm_kernels.ops.linear_w8a8 import linear_w8a8

from tests.kernels.quantised_weights import DTYPES, TOKENS, TOLERANCE, random_w8


@pytest.fixture
def triton(device: torch.device) -> Kernels:
    return select("triton", device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("inner", "outer"), [(1, 1), (40, 7), (128, 64), (300, 130)])
def test_w8a8(kernels: Kernels, tokens: int, inner: int, outer: int, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(tokens, inner, device=device).to(dtype)
    integers, scales = random_w8(outer, inner, device)
    output = kernels[linear_w8a8](x, integers, scales)
    # The largest error of a quantised input is half a step.
    error = x.double().abs().amax(1, keepdim=True) / 254 if tokens else x.double()[:, :1]
    weight = integers.double() * scales.double()[:, None]
    slack = error * weight.abs().sum(1) + TOLERANCE[dtype] * 10
    assert output.dtype is dtype
    assert ((output.double() - x.double() @ weight.T).abs() <= slack).all()
    # Integers are exact, and the float operations around them are specified one by one.
    torch.testing.assert_close(output, linear_w8a8.version("reference")(x, integers, scales), atol=0, rtol=0)


def test_inputs_are_rounded_to_even_by_their_rows_scale(kernels: Kernels, device: torch.device) -> None:
    # A largest magnitude of 127 makes the scale 1.
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5]], device=device)
    output = kernels[linear_w8a8](x, torch.eye(7, dtype=torch.int8, device=device), torch.ones(7, device=device))
    assert output.tolist() == [[127, 0, 2, 2, 0, -2, 126]]


def test_a_row_that_is_not_finite_leaves_the_others_alone(kernels: Kernels, device: torch.device) -> None:
    x = torch.randn(6, 1100, device=device)
    integers, scales = random_w8(9, 1100, device)
    expected = kernels[linear_w8a8](x, integers, scales)
    x[1, 1050], x[2, 3], x[4], x[5] = torch.nan, -torch.inf, 0, 1e-38
    output = kernels[linear_w8a8](x, integers, scales)
    assert output[1:3].isnan().all()
    assert torch.equal(output[[0, 3]], expected[[0, 3]])
    assert (output[4:] == 0).all()


def test_programs_in_groups_reach_each_row_and_output(triton: Kernels, device: torch.device) -> None:
    x = torch.randn(600, 32, device=device)  # Ten blocks of rows: more than a group has.
    integers, scales = random_w8(300, 32, device)
    assert torch.equal(triton[linear_w8a8](x, integers, scales), linear_w8a8.version("reference")(x, integers, scales))


def test_int8_without_integer_dot_products_is_the_same(triton: Kernels, device: torch.device) -> None:
    from pyllm_kernels.gpu.linears.linear_w8a8 import linear_w8a8 as multiply  # After `select`: it imports Triton.

    x = torch.randn(20, 300, device=device)
    integers, scales = random_w8(70, 300, device)
    output = multiply(x, integers, scales, card=Card(75, 1))
    assert torch.equal(output, triton[linear_w8a8](x, integers, scales))


def test_the_widest_int8_row_does_not_overflow(kernels: Kernels, device: torch.device) -> None:
    x = torch.full((1, 132_104), -127.0, device=device)
    integers = torch.full((1, x.shape[1]), -128, dtype=torch.int8, device=device)
    output = kernels[linear_w8a8](x, integers, torch.ones(1, device=device))
    assert output.item() == pytest.approx(127 * 128 * x.shape[1])
    with pytest.raises(ValueError, match="int32 sums are exact for 1 to 132104"):
        kernels[linear_w8a8](x.new_zeros(1, 132_105), integers.new_zeros(1, 132_105), torch.ones(1, device=device))


def test_weights_that_do_not_fit(kernels: Kernels, device: torch.device) -> None:
    x = torch.zeros(2, 192, device=device)
    integers, scales = random_w8(33, 192, device)
    with pytest.raises(ValueError, match=r"contiguous matrix of int8"):
        kernels[linear_w8a8](x, integers[:, ::2], scales)
    with pytest.raises(ValueError, match=r"integers take float32 \[33\]"):
        kernels[linear_w8a8](x, integers, scales[:, None])


@pytest.mark.gpu
def test_addresses_do_not_wrap_at_32_bits(triton: Kernels, device: torch.device) -> None:
    inner, outer = 32_768, 65_600
    x = torch.randn(2, inner, device=device).half()
    integers = torch.randint(-128, 128, (outer, inner), dtype=torch.int8, device=device)
    output = triton[linear_w8a8](x, integers, torch.ones(outer, device=device) / 8192)
    last = triton[linear_w8a8](x, integers[-5:].clone(), torch.ones(5, device=device) / 8192)
    assert torch.equal(output[:, -5:], last)
