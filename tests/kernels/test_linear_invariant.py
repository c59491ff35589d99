"""Linear layers that do not look at the batch: right, and bitwise the same for a row alone and among others."""

import pytest
import torch
from pyllm_kernels import Kernels, batch_invariant, select
from pyllm_kernels.ops.packed_linear import pack_linear, packed_linear


@pytest.fixture
def triton(device: torch.device) -> Kernels:
    return batch_invariant(select("triton", device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("tokens", "inner", "outer"), [(1, 64, 64), (3, 40, 7), (65, 128, 100), (130, 96, 33)])
def test_multiplies(
    triton: Kernels, tokens: int, inner: int, outer: int, dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.randn(tokens, inner, dtype=dtype, device=device)
    weight = torch.randn(outer, inner, dtype=dtype, device=device)
    expected = x.double() @ weight.double().T
    tolerance = 1e-4 if dtype is torch.float32 else 3e-2
    output = triton[packed_linear](x, triton[pack_linear](weight))
    assert output.dtype is dtype
    torch.testing.assert_close(output.double(), expected, atol=tolerance, rtol=tolerance)


def test_a_row_is_bitwise_the_same_alone(triton: Kernels, device: torch.device) -> None:
    x = torch.randn(131, 96, device=device)
    packed = triton[pack_linear](torch.randn(70, 96, device=device))
    together = triton[packed_linear](x, packed)
    for rows in (slice(0, 1), slice(17, 18), slice(64, 131), slice(130, 131)):
        assert torch.equal(triton[packed_linear](x[rows].contiguous(), packed), together[rows])


def test_other_backends_are_left_alone(device: torch.device) -> None:
    reference = select("reference", device)
    assert batch_invariant(reference) is reference
