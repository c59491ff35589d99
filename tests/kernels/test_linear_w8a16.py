"""8-bit weights with a scale a group against float64 and their torch twin, odd shapes included."""

import pytest
import torch
from pyllm_kernels import Kernels
from pyllm_kernels.ops.linear_w8a16 import linear_w8a16

from tests.kernels.quantised_weights import DTYPES, TOKENS, TOLERANCE, check, random_grouped_w8


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(
    ("inner", "outer", "group_size"),
    [(32, 1, 32), (96, 7, 32), (160, 70, 32), (192, 33, 64), (192, 130, 96), (256, 65, 128)],
)
def test_w8a16(
    kernels: Kernels, tokens: int, inner: int, outer: int, group_size: int, dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.randn(tokens, inner, device=device).to(dtype)
    integers, scales = random_grouped_w8(outer, inner, group_size, device)
    output = kernels[linear_w8a16](x, integers, scales)
    weight = scales.double()[:, torch.arange(inner, device=device) // group_size] * integers.double()
    check(output, x, weight.to(dtype).double())
    twin = linear_w8a16.version("reference")(x, integers, scales)
    torch.testing.assert_close(output, twin, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_integer_is_exact(kernels: Kernels, dtype: torch.dtype, device: torch.device) -> None:
    integers = torch.arange(-128, 128, dtype=torch.int8, device=device)[:, None].repeat(1, 32)
    scales = torch.full((256, 1), 0.333, dtype=torch.float16, device=device)
    x = torch.eye(32, device=device).to(dtype)[:1]
    output = kernels[linear_w8a16](x, integers, scales)
    assert torch.equal(output[0], (scales[:, 0].double() * integers[:, 0]).to(dtype))


def test_weights_that_do_not_fit(kernels: Kernels, device: torch.device) -> None:
    x = torch.zeros(2, 192, device=device)
    integers, scales = random_grouped_w8(33, 192, 32, device)
    with pytest.raises(ValueError, match=r"integers is .*uint8 .* it takes a contiguous matrix of int8"):
        kernels[linear_w8a16](x, integers.view(torch.uint8), scales)
    with pytest.raises(ValueError, match=r"scales is .*float32 .* of float16"):
        kernels[linear_w8a16](x, integers, scales.float())
    with pytest.raises(ValueError, match="a group has a multiple of 32 features"):
        kernels[linear_w8a16](x, integers, torch.zeros(33, 12, dtype=torch.float16, device=device))
