"""Linears of quantised weights against float64 and their torch twins, odd shapes included, and row by row.

Triton 3.9's interpreter gets bfloat16 `tl.dot` wrong, so bfloat16 needs a card. Its `tl.dot` of int8 is right, and its
loads of fp8 are right but for NaN: the kernels load bytes and decode them, as Triton does it on no card before Ada.
"""

from collections.abc import Callable

import pytest
import torch
from pyllm_kernels import Kernels, reference, select
from pyllm_kernels.cards import Card
from torch import Tensor

needs_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DTYPES = [
    torch.float32,
    torch.float16,
    pytest.param(torch.bfloat16, marks=[pytest.mark.gpu, needs_card]),
]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
TOKENS = [0, 1, 3, 50]
FEW = 16  # More rows take another tile.
Linear = Callable[..., Tensor]


@pytest.fixture
def triton(device: torch.device) -> Kernels:
    return select("triton", device)


def random_w4(outer: int, inner: int, group_size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    integers = torch.randint(0, 256, (outer, inner // 2), dtype=torch.uint8, device=device)
    scales = torch.rand(outer, inner // group_size, device=device) * 0.02 + 0.01
    return integers, scales.half(), (-8 * scales + 0.01 * torch.randn_like(scales)).half()


def random_w8(outer: int, inner: int, device: torch.device) -> tuple[Tensor, Tensor]:
    integers = torch.randint(-128, 128, (outer, inner), dtype=torch.int8, device=device)
    return integers, torch.rand(outer, device=device) * 0.002 + 0.001


def random_fp8(outer: int, inner: int, scales: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    weight = torch.randn(outer, inner, device=device).to(torch.float8_e4m3fn)
    return weight, torch.rand(scales, device=device) * 0.2 + 0.1


def check(output: Tensor, x: Tensor, weight: Tensor) -> None:
    """Against float64, to what the sum and its dtype allow."""
    assert output.dtype is x.dtype
    expected = x.double() @ weight.T
    tolerance = TOLERANCE[x.dtype]
    torch.testing.assert_close(output.double(), expected, atol=tolerance * x.shape[1] ** 0.5, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(
    ("inner", "outer", "group_size"),
    [(32, 1, 32), (96, 7, 32), (160, 70, 32), (192, 33, 64), (192, 130, 96), (384, 20, 192), (256, 65, 128)],
)
def test_w4a16(
    kernels: Kernels, tokens: int, inner: int, outer: int, group_size: int, dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.randn(tokens, inner, device=device).to(dtype)
    integers, scales, minimums = random_w4(outer, inner, group_size, device)
    output = kernels.linear_w4a16(x, integers, scales, minimums)
    weight = torch.empty(outer, inner, dtype=torch.float64, device=device)
    for feature in range(inner):
        block, place = divmod(feature, 32)
        packed = integers[:, block * 16 + place % 16].long()
        group = feature // group_size
        integer = packed >> 4 if place >= 16 else packed & 15
        weight[:, feature] = scales[:, group].double() * integer + minimums[:, group].double()
    check(output, x, weight.to(dtype).double())
    twin = reference.linear_w4a16(x, integers, scales, minimums)
    torch.testing.assert_close(output, twin, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("inner", "outer"), [(1, 1), (40, 7), (128, 64), (300, 130)])
def test_w8a8(kernels: Kernels, tokens: int, inner: int, outer: int, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(tokens, inner, device=device).to(dtype)
    integers, scales = random_w8(outer, inner, device)
    output = kernels.linear_w8a8(x, integers, scales)
    # The largest error of a quantised input is half a step.
    error = x.double().abs().amax(1, keepdim=True) / 254 if tokens else x.double()[:, :1]
    weight = integers.double() * scales.double()[:, None]
    slack = error * weight.abs().sum(1) + TOLERANCE[dtype] * 10
    assert output.dtype is dtype
    assert ((output.double() - x.double() @ weight.T).abs() <= slack).all()
    # Integers are exact, and the float operations around them are specified one by one.
    torch.testing.assert_close(output, reference.linear_w8a8(x, integers, scales), atol=0, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(
    ("inner", "outer", "scales", "block"),
    [
        (1, 1, (1, 1), (128, 128)),
        (40, 7, (1, 1), (128, 128)),
        (72, 70, (70, 1), (128, 128)),
        (130, 130, (2, 2), (128, 128)),
        (256, 65, (1, 2), (128, 128)),
        (200, 33, (3, 4), (16, 64)),
        (200, 33, (33, 2), (128, 128)),
        (100, 130, (2, 1), (128, 128)),
    ],
)
def test_fp8(
    kernels: Kernels,
    tokens: int,
    inner: int,
    outer: int,
    scales: tuple[int, int],
    block: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    x = torch.randn(tokens, inner, device=device).to(dtype)
    weight, factors = random_fp8(outer, inner, scales, device)
    output = kernels.linear_fp8(x, weight, factors, None, block)
    height = {1: outer, outer: 1}.get(scales[0], block[0])
    width = inner if scales[1] == 1 else block[1]
    rows, columns = torch.arange(outer, device=device) // height, torch.arange(inner, device=device) // width
    check(output, x, weight.double() * factors.double()[rows[:, None], columns[None, :]])
    twin = reference.linear_fp8(x, weight, factors, None, block)
    torch.testing.assert_close(output, twin, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_number_of_fp8_is_exact(kernels: Kernels, dtype: torch.dtype, device: torch.device) -> None:
    codes = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(torch.float8_e4m3fn).to(device)
    ones = torch.ones(1, 1, device=device)
    output = kernels.linear_fp8(ones.to(dtype), codes.view(256, 1), ones)
    assert codes.float().isnan().sum() == 2
    torch.testing.assert_close(output[0], codes.to(dtype), atol=0, rtol=0, equal_nan=True)


def test_inputs_are_rounded_to_even_by_their_rows_scale(kernels: Kernels, device: torch.device) -> None:
    # A largest magnitude of 127 makes the scale 1.
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5]], device=device)
    output = kernels.linear_w8a8(x, torch.eye(7, dtype=torch.int8, device=device), torch.ones(7, device=device))
    assert output.tolist() == [[127, 0, 2, 2, 0, -2, 126]]


def test_a_row_that_is_not_finite_leaves_the_others_alone(kernels: Kernels, device: torch.device) -> None:
    x = torch.randn(6, 1100, device=device)
    integers, scales = random_w8(9, 1100, device)
    expected = kernels.linear_w8a8(x, integers, scales)
    x[1, 1050], x[2, 3], x[4], x[5] = torch.nan, -torch.inf, 0, 1e-38
    output = kernels.linear_w8a8(x, integers, scales)
    assert output[1:3].isnan().all()
    assert torch.equal(output[[0, 3]], expected[[0, 3]])
    assert (output[4:] == 0).all()


def test_programs_in_groups_reach_each_row_and_output(triton: Kernels, device: torch.device) -> None:
    x = torch.randn(600, 32, device=device)  # Ten blocks of rows: more than a group has.
    integers, scales = random_w8(300, 32, device)
    assert torch.equal(triton.linear_w8a8(x, integers, scales), reference.linear_w8a8(x, integers, scales))


def test_int8_without_integer_dot_products_is_the_same(triton: Kernels, device: torch.device) -> None:
    from pyllm_kernels.gpu import linear_int8  # After `select`: it imports Triton.

    x = torch.randn(20, 300, device=device)
    integers, scales = random_w8(70, 300, device)
    output = linear_int8.linear_w8a8(x, integers, scales, card=Card(75, 1))
    assert torch.equal(output, triton.linear_w8a8(x, integers, scales))


def test_the_widest_int8_row_does_not_overflow(kernels: Kernels, device: torch.device) -> None:
    x = torch.full((1, 132_104), -127.0, device=device)
    integers = torch.full((1, x.shape[1]), -128, dtype=torch.int8, device=device)
    output = kernels.linear_w8a8(x, integers, torch.ones(1, device=device))
    assert output.item() == pytest.approx(127 * 128 * x.shape[1])
    with pytest.raises(ValueError, match="int32 sums are exact for 1 to 132104"):
        kernels.linear_w8a8(x.new_zeros(1, 132_105), integers.new_zeros(1, 132_105), torch.ones(1, device=device))


def linears(kernels: Kernels, outer: int, device: torch.device) -> dict[str, Linear]:
    """Each linear with weights of its own, of 192 features; it takes x and `out`."""
    w4, w8 = random_w4(outer, 192, 32, device), random_w8(outer, 192, device)
    whole, blocks = random_fp8(outer, 192, (1, 1), device), random_fp8(outer, 192, (-(-outer // 128), 2), device)
    return {
        "w4a16": lambda x, out=None: kernels.linear_w4a16(x, *w4, out),
        "w8a8": lambda x, out=None: kernels.linear_w8a8(x, *w8, out),
        "fp8": lambda x, out=None: kernels.linear_fp8(x, *whole, out),
        "fp8 in blocks": lambda x, out=None: kernels.linear_fp8(x, *blocks, out),
    }


LINEARS = ["w4a16", "w8a8", "fp8", "fp8 in blocks"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LINEARS)
def test_a_row_is_bitwise_the_same_alone(name: str, dtype: torch.dtype, triton: Kernels, device: torch.device) -> None:
    linear = linears(triton, 150, device)[name]
    x = torch.randn(131, 192, device=device).to(dtype)
    few, many = linear(x[:FEW]), linear(x)
    for rows in (slice(0, 1), slice(15, 16), slice(3, 9)):
        assert torch.equal(linear(x[rows].contiguous()), few[rows])
    for rows in (slice(0, 17), slice(20, 38), slice(64, 131)):
        assert torch.equal(linear(x[rows].contiguous()), many[rows])
    x[5] = torch.nan
    others = torch.arange(131, device=device) != 5
    assert torch.equal(linear(x)[others], many[others])
    assert torch.equal(linear(x[:FEW])[others[:FEW]], few[others[:FEW]])


@pytest.mark.gpu
@needs_card  # NumPy, which the interpreter multiplies with, has another order of sums for another size of tile.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LINEARS)
def test_few_rows_are_bitwise_the_same_among_many(
    name: str, dtype: torch.dtype, triton: Kernels, device: torch.device
) -> None:
    linear = linears(triton, 150, device)[name]
    x = torch.randn(131, 192, device=device).to(dtype)
    assert torch.equal(linear(x[:FEW]), linear(x)[:FEW])
    assert torch.equal(linear(x[130:]), linear(x)[130:])


@pytest.mark.parametrize("name", LINEARS)
def test_some_columns_of_a_wider_tensor_are_written_to(name: str, kernels: Kernels, device: torch.device) -> None:
    linear = linears(kernels, 33, device)[name]
    x = torch.randn(18, 192, device=device)
    wide = torch.full((18, 50), 7.0, device=device)
    out = wide[:, 5:38]
    assert linear(x, out) is out
    assert torch.equal(out, linear(x))
    assert (wide[:, :5] == 7).all()
    assert (wide[:, 38:] == 7).all()


@pytest.mark.parametrize("name", LINEARS)
@pytest.mark.parametrize(
    ("x", "out", "message"),
    [
        (torch.zeros(2, 191), None, r"the weight takes contiguous float16, bfloat16 or float32 \[tokens, 192\]"),
        (torch.zeros(192), None, r"x is torch.float32 \[192\]"),
        (torch.zeros(192, 2).T, None, r"x is .* with strides \(1, 2\)"),
        (torch.zeros(2, 192, dtype=torch.float64), None, "x is torch.float64"),
        (torch.zeros(2, 192), torch.zeros(2, 32), r"out is .*: it takes torch.float32 \[2, 33\]"),
        (torch.zeros(2, 192), torch.zeros(2, 33).half(), "out is torch.float16"),
        (torch.zeros(2, 192), torch.zeros(33, 2).T, "each row in one piece"),
    ],
)
def test_inputs_and_outputs_that_do_not_fit(
    name: str, x: Tensor, out: Tensor | None, message: str, kernels: Kernels, device: torch.device
) -> None:
    with pytest.raises(ValueError, match=message):
        linears(kernels, 33, device)[name](x.to(device), None if out is None else out.to(device))


def test_weights_that_do_not_fit(kernels: Kernels, device: torch.device) -> None:
    x = torch.zeros(2, 192, device=device)
    integers, scales, minimums = random_w4(33, 192, 32, device)
    with pytest.raises(ValueError, match=r"integers is torch.int8 .* it takes a contiguous matrix of torch.uint8"):
        kernels.linear_w4a16(x, integers.view(torch.int8), scales, minimums)
    with pytest.raises(ValueError, match=r"scales is torch.float32 .* of torch.float16"):
        kernels.linear_w4a16(x, integers, scales.float(), minimums)
    with pytest.raises(ValueError, match="a group has a multiple of 32 features"):
        kernels.linear_w4a16(x, integers, *torch.zeros(2, 33, 12, dtype=torch.float16, device=device))
    with pytest.raises(ValueError, match=r"minimums are \[33, 3\] and scales \[33, 6\]"):
        kernels.linear_w4a16(x, integers, scales, minimums[:, :3].contiguous())
    integers, scales = random_w8(33, 192, device)
    with pytest.raises(ValueError, match=r"contiguous matrix of torch.int8"):
        kernels.linear_w8a8(x, integers[:, ::2], scales)
    with pytest.raises(ValueError, match=r"integers take float32 \[33\]"):
        kernels.linear_w8a8(x, integers, scales[:, None])
    weight, scales = random_fp8(33, 192, (1, 1), device)
    with pytest.raises(ValueError, match=r"scales are \[2, 1\]: .* takes 1, 1 or 33 rows of 1 or 2"):
        kernels.linear_fp8(x, weight, scales.repeat(2, 1))
    with pytest.raises(ValueError, match="a multiple of 64 features"):
        kernels.linear_fp8(x, weight, scales, None, (1, 32))


@pytest.mark.gpu
@needs_card
def test_addresses_do_not_wrap_at_32_bits(triton: Kernels, device: torch.device) -> None:
    inner, outer = 32_768, 65_600
    x = torch.randn(2, inner, device=device).half()
    integers = torch.randint(-128, 128, (outer, inner), dtype=torch.int8, device=device)
    output = triton.linear_w8a8(x, integers, torch.ones(outer, device=device) / 8192)
    last = triton.linear_w8a8(x, integers[-5:].clone(), torch.ones(5, device=device) / 8192)
    assert torch.equal(output[:, -5:], last)
