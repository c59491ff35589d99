"""RMSNorm against its formula in float64."""

import pytest
import torch
from pyllm_kernels import Kernels
from torch import Tensor

EPSILON = 1e-5
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
SHAPES = [(1, 64), (3, 576), (5, 80), (2, 1000), (4, 1)]


def expected(x: Tensor, weight: Tensor) -> Tensor:
    rows = [row / (sum(v * v for v in row.tolist()) / len(row) + EPSILON) ** 0.5 for row in x.double()]
    return torch.stack(rows) * weight.double()


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_normalises_each_row(
    kernels: Kernels, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.randn(shape, dtype=dtype, device=device) * 3
    weight = torch.randn(shape[1], dtype=dtype, device=device)
    normed = kernels.rms_norm(x, weight, EPSILON)
    assert normed.dtype == dtype
    torch.testing.assert_close(normed.double(), expected(x, weight), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_adds_to_the_residual_stream_and_normalises_the_rounded_sum(
    kernels: Kernels, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    x, residual = torch.randn((2, *shape), dtype=dtype, device=device)
    weight = torch.randn(shape[1], dtype=dtype, device=device)
    inputs = x.clone(), residual.clone()
    normed, total = kernels.add_rms_norm(x, residual, weight, EPSILON)
    # One unit in the last place: Triton's interpreter truncates where it should round to bfloat16.
    sum_of_inputs = inputs[0].double() + inputs[1].double()
    torch.testing.assert_close(total.double(), sum_of_inputs, atol=0, rtol=torch.finfo(dtype).eps)
    assert torch.equal(normed, kernels.rms_norm(total, weight, EPSILON))
    assert torch.equal(x, inputs[0])
    assert torch.equal(residual, inputs[1])


def test_rows_may_be_strided_and_do_not_depend_on_each_other(kernels: Kernels, device: torch.device) -> None:
    wide = torch.randn(6, 200, device=device)
    weight = torch.randn(96, device=device)
    together = kernels.rms_norm(wide[:, 8:104], weight, EPSILON)
    alone = [kernels.rms_norm(wide[row : row + 1, 8:104].contiguous(), weight, EPSILON) for row in range(6)]
    assert torch.equal(together, torch.cat(alone))
    normed, total = kernels.add_rms_norm(wide[:, 8:104], wide[:, 104:], weight, EPSILON)
    assert torch.equal(total, wide[:, 8:104] + wide[:, 104:])
    assert torch.equal(normed, kernels.rms_norm(total, weight, EPSILON))
