"""Gated activations against their formula in float64."""

import math

import pytest
import torch
from pyllm_kernels import Kernels

TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(("tokens", "intermediate"), [(1, 1), (3, 96), (2, 1536), (5, 1025)])
def test_the_gate_comes_first(
    kernels: Kernels, tokens: int, intermediate: int, dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.randn((tokens, 2 * intermediate), dtype=dtype, device=device) * 4
    expected = [
        [gate / (1 + math.exp(-gate)) * up for gate, up in zip(row[:intermediate], row[intermediate:], strict=True)]
        for row in x.double().tolist()
    ]
    output = kernels.silu_and_mul(x)
    assert output.dtype == dtype
    torch.testing.assert_close(
        output.double().cpu(),
        torch.tensor(expected, dtype=torch.float64),
        atol=TOLERANCE[dtype],
        rtol=TOLERANCE[dtype],
    )


def test_large_gates_saturate(kernels: Kernels, device: torch.device) -> None:
    x = torch.tensor([[-80.0, 80.0, 3.0, 3.0]], device=device)
    closed, opened = kernels.silu_and_mul(x)[0].tolist()
    assert -1e-30 < closed < 0
    assert opened == 240


def test_rows_may_be_strided(kernels: Kernels, device: torch.device) -> None:
    wide = torch.randn(4, 200, device=device)
    assert torch.equal(kernels.silu_and_mul(wide[:, 10:110]), kernels.silu_and_mul(wide[:, 10:110].contiguous()))
