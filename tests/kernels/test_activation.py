"""Activations, with a gate and without, against their formulas in float64."""

import math
from collections.abc import Callable

import pytest
import torch
from pyllm_kernels import Kernels, LimitedSwiglu, Xielu
from pyllm_kernels.ops.activation import activation

TOLERANCE = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 2e-2}
FORMULAS: dict[str, Callable[[float], float]] = {
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
}
XIELU = Xielu(positive=0.7, negative=1.4, beta=0.5, epsilon=-1e-6)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("kind", list(FORMULAS))
@pytest.mark.parametrize(("tokens", "size"), [(1, 1), (3, 96), (2, 1536), (5, 1025)])
def test_the_gate_comes_first(
    kernels: Kernels, tokens: int, size: int, kind: str, dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.randn((tokens, 2 * size), dtype=dtype, device=device) * 4
    before = x.clone()
    activated = [[FORMULAS[kind](number) for number in row] for row in x.double().tolist()]
    expected = torch.tensor(activated, dtype=torch.float64)
    tolerance = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
    alone = kernels[activation](x, kind, False)
    assert alone.dtype == dtype
    torch.testing.assert_close(alone.double().cpu(), expected, **tolerance)
    gated = kernels[activation](x, kind)
    assert gated.dtype == dtype
    expected = expected[:, :size] * x[:, size:].double().cpu()
    torch.testing.assert_close(gated.double().cpu(), expected, atol=4 * TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert torch.equal(x, before)


def test_the_gate_and_its_factor_may_be_apart(kernels: Kernels, device: torch.device) -> None:
    x = torch.randn((3, 96), device=device)
    gate, up = x.split(48, dim=-1)
    assert torch.equal(kernels[activation](gate.contiguous(), "gelu_tanh", up=up), kernels[activation](x, "gelu_tanh"))


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(("tokens", "size"), [(1, 1), (5, 1025)])
def test_both_factors_may_have_a_limit(
    kernels: Kernels, tokens: int, size: int, dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.randn((tokens, 2 * size), dtype=dtype, device=device) * 4
    gate, up = x.double().cpu().split(size, dim=-1)
    expected = (gate * gate.sigmoid()).clamp(max=1.5) * up.clamp(-1.5, 1.5)
    limited = kernels[activation](x, LimitedSwiglu(1.5))
    torch.testing.assert_close(limited.double().cpu(), expected, atol=4 * TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("kind", list(FORMULAS))
def test_large_gates_saturate(kernels: Kernels, kind: str, device: torch.device) -> None:
    x = torch.tensor([[-80.0, 80.0, 3.0, 3.0]], device=device)
    closed, opened = kernels[activation](x, kind)[0].tolist()
    assert -1e-30 < closed <= 0
    assert opened == 3 * FORMULAS[kind](80)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(("tokens", "size"), [(1, 1), (3, 96), (5, 1025)])
def test_an_activation_with_learned_numbers(
    kernels: Kernels, tokens: int, size: int, dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.randn((tokens, size), dtype=dtype, device=device) * 3
    x[0, 0] = -0.0
    wide = x.double().cpu()
    curved = torch.where(wide > 0, XIELU.positive * wide**2, (wide.clamp(max=XIELU.epsilon).expm1() - wide) * 1.4)
    activated = kernels[activation](x, XIELU, False)
    assert activated.dtype == dtype
    tolerance = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
    torch.testing.assert_close(activated.double().cpu(), curved + XIELU.beta * wide, **tolerance)


@pytest.mark.parametrize("kind", list(FORMULAS))
@pytest.mark.parametrize("gated", [False, True])
def test_rows_may_be_strided_and_do_not_depend_on_each_other(
    kernels: Kernels, kind: str, gated: bool, device: torch.device
) -> None:
    part = torch.randn(4, 200, device=device)[:, 10:110]
    alone = torch.cat([kernels[activation](part[row : row + 1].contiguous(), kind, gated) for row in range(4)])
    together = kernels[activation](part, kind, gated)
    if kernels.backend == "reference":
        torch.testing.assert_close(together, alone)  # torch's erf differs where it is not vectorised.
    else:
        assert torch.equal(together, alone)
