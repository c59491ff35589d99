"""What the linears of quantised weights have in common: rows alone and among others, outputs and their refusals."""

from collections.abc import Callable

import pytest
import torch
from pyllm_kernels import Kernels, select
from pyllm_kernels.ops.linear_fp8 import linear_fp8
from pyllm_kernels.ops.linear_w4a16 import linear_w4a16
from pyllm_kernels.ops.linear_w8a8 import linear_w8a8
from pyllm_kernels.ops.linear_w8a16 import linear_w8a16
from torch import Tensor

from tests.kernels.quantised_weights import DTYPES, random_fp8, random_grouped_w8, random_w4, random_w8

FEW = 16  # More rows take another tile.
Linear = Callable[..., Tensor]


@pytest.fixture
def triton(device: torch.device) -> Kernels:
    return select("triton", device)


def linears(kernels: Kernels, outer: int, device: torch.device) -> dict[str, Linear]:
    """Each linear with weights of its own, of 192 features; it takes x and `out`."""
    w4, w8 = random_w4(outer, 192, 32, device), random_w8(outer, 192, device)
    grouped_w8 = random_grouped_w8(outer, 192, 32, device)
    whole, blocks = random_fp8(outer, 192, (1, 1), device), random_fp8(outer, 192, (-(-outer // 128), 2), device)
    return {
        "w4a16": lambda x, out=None: kernels[linear_w4a16](x, *w4, out),
        "w8a16": lambda x, out=None: kernels[linear_w8a16](x, *grouped_w8, out),
        "w8a8": lambda x, out=None: kernels[linear_w8a8](x, *w8, out),
        "fp8": lambda x, out=None: kernels[linear_fp8](x, *whole, out),
        "fp8 in blocks": lambda x, out=None: kernels[linear_fp8](x, *blocks, out),
    }


LINEARS = ["w4a16", "w8a16", "w8a8", "fp8", "fp8 in blocks"]


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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
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
        (torch.zeros(192), None, r"x is .*float32 \[192\]"),
        (torch.zeros(192, 2).T, None, r"x is .* with strides \(1, 2\)"),
        (torch.zeros(2, 192, dtype=torch.float64), None, "x is .*float64"),
        (torch.zeros(2, 192), torch.zeros(2, 32), r"out is .*: it takes .*float32 \[2, 33\]"),
        (torch.zeros(2, 192), torch.zeros(2, 33).half(), "out is .*float16"),
        (torch.zeros(2, 192), torch.zeros(33, 2).T, "each row in one piece"),
    ],
)
def test_inputs_and_outputs_that_do_not_fit(
    name: str, x: Tensor, out: Tensor | None, message: str, kernels: Kernels, device: torch.device
) -> None:
    with pytest.raises(ValueError, match=message):
        linears(kernels, 33, device)[name](x.to(device), None if out is None else out.to(device))
