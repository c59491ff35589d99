"""fp8 weights against float64 and their torch twin, odd shapes included."""

import pytest
import torch
from pyllm_kernels import Kernels
from pyllm_kernels.ops.linear_fp8 import linear_fp8

from tests.kernels.quantised_weights import DTYPES, TOKENS, TOLERANCE, check, random_fp8


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
    output = kernels[linear_fp8](x, weight, factors, None, block)
    height = {1: outer, outer: 1}.get(scales[0], block[0])
    width = inner if scales[1] == 1 else block[1]
    rows, columns = torch.arange(outer, device=device) // height, torch.arange(inner, device=device) // width
    check(output, x, weight.double() * factors.double()[rows[:, None], columns[None, :]])
    twin = linear_fp8.version("reference")(x, weight, factors, None, block)
    torch.testing.assert_close(output, twin, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_number_of_fp8_is_exact(kernels: Kernels, dtype: torch.dtype, device: torch.device) -> None:
    codes = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(torch.float8_e4m3fn).to(device)
    ones = torch.ones(1, 1, device=device)
    output = kernels[linear_fp8](ones.to(dtype), codes.view(256, 1), ones)
    assert codes.float().isnan().sum() == 2
    torch.testing.assert_close(output[0], codes.to(dtype), atol=0, rtol=0, equal_nan=True)


def test_weights_that_do_not_fit(kernels: Kernels, device: torch.device) -> None:
    x = torch.zeros(2, 192, device=device)
    weight, scales = random_fp8(33, 192, (1, 1), device)
    with pytest.raises(ValueError, match=r"scales are \[2, 1\]: .* takes 1, 1 or 33 rows of 1 or 2"):
        kernels[linear_fp8](x, weight, scales.repeat(2, 1))
    with pytest.raises(ValueError, match="a multiple of 64 features"):
        kernels[linear_fp8](x, weight, scales, None, (1, 32))
