"""4-bit weights against float64 and their torch twin, odd shapes included."""

import pytest
import torch
from pyllm_kernels import Kernels
from pyllm_kernels.ops.linear_w4a16 import linear_w4a16

from tests.kernels.quantised_weights import DTYPES, TOKENS, TOLERANCE, check, random_w4


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
    output = kernels[linear_w4a16](x, integers, scales, minimums)
    weight = torch.empty(outer, inner, dtype=torch.float64, device=device)
    for feature in range(inner):
        block, place = divmod(feature, 32)
        packed = integers[:, block * 16 + place % 16].long()
        group = feature // group_size
        integer = packed >> 4 if place >= 16 else packed & 15
        weight[:, feature] = scales[:, group].double() * integer + minimums[:, group].double()
    check(output, x, weight.to(dtype).double())
    twin = linear_w4a16.version("reference")(x, integers, scales, minimums)
    torch.testing.assert_close(output, twin, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_weights_that_do_not_fit(kernels: Kernels, device: torch.device) -> None:
    x = torch.zeros(2, 192, device=device)
    integers, scales, minimums = random_w4(33, 192, 32, device)
    with pytest.raises(ValueError, match=r"integers is .*int8 .* it takes a contiguous matrix of uint8"):
        kernels[linear_w4a16](x, integers.view(torch.int8), scales, minimums)
    with pytest.raises(ValueError, match=r"scales is .*float32 .* of float16"):
        kernels[linear_w4a16](x, integers, scales.float(), minimums)
    with pytest.raises(ValueError, match="a group has a multiple of 32 features"):
        kernels[linear_w4a16](x, integers, *torch.zeros(2, 33, 12, dtype=torch.float16, device=device))
    with pytest.raises(ValueError, match=r"minimums are \[33, 3\] and scales \[33, 6\]"):
        kernels[linear_w4a16](x, integers, scales, minimums[:, :3].contiguous())
