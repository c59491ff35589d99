"""A bias, a factor and a cap in place, the residual added, and gates, against their formulas in float64."""

import pytest
import torch
from pyllm_kernels import Kernels, select
from pyllm_kernels.ops.elementwise import add, add_bias, scale_and_cap, sigmoid_gate

# Twice the unit in the last place: Triton's interpreter truncates where it should round to bfloat16.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SHAPES = [(1, 1), (3, 96), (2, 1536), (5, 1025), (4, 17)]


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("has_wide_bias", [False, True])
def test_a_bias_is_added_in_place(
    kernels: Kernels, shape: tuple[int, int], dtype: torch.dtype, has_wide_bias: bool, device: torch.device
) -> None:
    tokens, width = shape
    wide = torch.randn(tokens, width + 9, dtype=dtype, device=device)
    bias = torch.randn(width, dtype=torch.float32 if has_wide_bias else dtype, device=device)
    before, x = wide.clone(), wide[:, 3 : 3 + width]
    assert kernels[add_bias](x, bias) is x
    expected = before[:, 3 : 3 + width].double() + bias.double()
    torch.testing.assert_close(x.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert torch.equal(wide[:, :3], before[:, :3])
    assert torch.equal(wide[:, 3 + width :], before[:, 3 + width :])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("factor", "cap"), [(1.0, 30.0), (0.37, None), (8.0, None), (2.5, 5.0)])
def test_numbers_are_scaled_and_capped_in_place(
    kernels: Kernels, shape: tuple[int, int], dtype: torch.dtype, factor: float, cap: float | None, device: torch.device
) -> None:
    tokens, width = shape
    wide = torch.randn(tokens, width + 9, dtype=dtype, device=device) * 20
    before, x = wide.clone(), wide[:, :width]
    assert kernels[scale_and_cap](x, factor, cap) is x
    scaled = before[:, :width].double() * factor
    expected = scaled if cap is None else cap * torch.tanh(scaled / cap)
    atol = TOLERANCE[dtype] * (cap or 1.0)
    torch.testing.assert_close(x.double(), expected, atol=atol, rtol=TOLERANCE[dtype])
    assert torch.equal(wide[:, width:], before[:, width:])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("factor", [1.0, 0.22])
def test_the_residual_is_added_and_rounded_once(
    kernels: Kernels, shape: tuple[int, int], dtype: torch.dtype, factor: float, device: torch.device
) -> None:
    x, residual = torch.randn((2, *shape), dtype=dtype, device=device)
    inputs = x.clone(), residual.clone()
    output = kernels[add](x, residual, factor)
    assert output.dtype == dtype
    expected = inputs[0].double() * factor + inputs[1].double()
    torch.testing.assert_close(output.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert torch.equal(x, inputs[0])
    assert torch.equal(residual, inputs[1])


def test_rows_do_not_depend_on_each_other(kernels: Kernels, device: torch.device) -> None:
    wide = torch.randn(6, 200, device=device)
    x, residual, bias = wide[:, 8:104], wide[:, 104:], torch.randn(96, device=device)
    rows = [(x[row : row + 1].contiguous(), residual[row : row + 1].contiguous()) for row in range(6)]
    added = [kernels[add](*row, 0.3) for row in rows]
    assert torch.equal(kernels[add](x, residual, 0.3), torch.cat(added))
    changed = [kernels[scale_and_cap](kernels[add_bias](row, bias), 0.7, 2.0) for row, _ in rows]
    assert torch.equal(kernels[scale_and_cap](kernels[add_bias](x, bias), 0.7, 2.0), torch.cat(changed))


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_gate_is_a_factor(backend: str, shape: tuple[int, int], dtype: torch.dtype, is_shared: bool) -> None:
    tokens, width = shape
    x, gates = torch.randn(tokens, width).to(dtype), (torch.randn(tokens, width + 9) * 5).to(dtype)
    gate = gates[:, 3:4] if is_shared else gates[:, 3 : 3 + width]
    output = select(backend, "cpu")[sigmoid_gate](x, gate)
    assert output.dtype == dtype
    expected = x.double() * gate.double().sigmoid()
    torch.testing.assert_close(output.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
