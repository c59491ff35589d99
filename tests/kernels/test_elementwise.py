"""A bias, a factor and a cap in place, a gate, the residual added, and a cast, against their formulas in float64."""

import pytest
import torch
from pyllm_kernels import Kernels
from pyllm_kernels.ops.elementwise import add, add_bias, clamp, scale_and_cap, sigmoid_gate, softplus_gate, widen

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
def test_numbers_beyond_a_limit_become_the_limit(
    kernels: Kernels, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    tokens, width = shape
    wide = torch.randn(tokens, width + 9, dtype=dtype, device=device)
    wide[0, 0] = torch.nan
    before, x = wide.clone(), wide[:, :width]
    assert kernels[clamp](x, 0.5) is x
    assert torch.equal(x.nan_to_num(9.0), before[:, :width].clamp(-0.5, 0.5).nan_to_num(9.0))
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


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("part", ["each", "third", "all"])
def test_a_gate_is_multiplied_in_place(
    kernels: Kernels, shape: tuple[int, int], dtype: torch.dtype, part: str, device: torch.device
) -> None:
    tokens, width = shape
    numbers = {"each": width, "third": 3 if width % 3 == 0 else width, "all": 1}[part]
    wide = torch.randn(tokens, width + 9, dtype=dtype, device=device)
    gate = 5 * torch.randn(tokens, numbers, dtype=dtype, device=device)
    factors = {sigmoid_gate: gate.double().sigmoid(), softplus_gate: torch.nn.functional.softplus(gate.double())}
    for gated, factor in factors.items():
        own = wide.clone()
        x = own[:, 3 : 3 + width]
        assert kernels[gated](x, gate) is x
        expected = wide[:, 3 : 3 + width].double() * factor.repeat_interleave(width // numbers, 1)
        torch.testing.assert_close(x.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
        assert torch.equal(own[:, :3], wide[:, :3])
        assert torch.equal(own[:, 3 + width :], wide[:, 3 + width :])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_numbers_are_widened(kernels: Kernels, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(3, 33, dtype=dtype, device=device)
    widened = kernels[widen](x)
    assert widened.dtype is torch.float32
    assert torch.equal(widened, x.float())


def test_rows_do_not_depend_on_each_other(kernels: Kernels, device: torch.device) -> None:
    wide = torch.randn(6, 200, device=device)
    x, residual, bias = wide[:, 8:104], wide[:, 104:], torch.randn(96, device=device)
    rows = [(x[row : row + 1].contiguous(), residual[row : row + 1].contiguous()) for row in range(6)]
    added = [kernels[add](*row, 0.3) for row in rows]
    assert torch.equal(kernels[add](x, residual, 0.3), torch.cat(added))
    changed = [kernels[scale_and_cap](kernels[add_bias](row, bias), 0.7, 2.0) for row, _ in rows]
    assert torch.equal(kernels[scale_and_cap](kernels[add_bias](x, bias), 0.7, 2.0), torch.cat(changed))
    gated = [kernels[sigmoid_gate](row, by) for row, by in rows]
    assert torch.equal(kernels[sigmoid_gate](x, residual), torch.cat(gated))
