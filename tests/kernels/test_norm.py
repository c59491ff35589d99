"""RMSNorm and layer norm against their formulas in float64."""

import pytest
import torch
from pyllm_kernels import Kernels
from pyllm_kernels.ops.norm import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from torch import Tensor

EPSILON = 1e-5
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
SHAPES = [(1, 64), (3, 576), (5, 80), (2, 1000), (4, 1)]
CENTRED = pytest.mark.parametrize("centred", [False, True], ids=["rms", "layer"])


def norm(kernels: Kernels, x: Tensor, weight: Tensor, *, centred: bool) -> Tensor:
    return (kernels[layer_norm] if centred else kernels[rms_norm])(x, weight, EPSILON)


def add_norm(
    kernels: Kernels, x: Tensor, residual: Tensor, weight: Tensor, factor: float, *, centred: bool
) -> tuple[Tensor, Tensor]:
    return (kernels[add_layer_norm] if centred else kernels[add_rms_norm])(x, residual, weight, EPSILON, factor)


def expected(x: Tensor, weight: Tensor, *, centred: bool) -> Tensor:
    rows = []
    for row in x.double():
        numbers = row - sum(row.tolist()) / len(row) if centred else row
        rows.append(numbers / (sum(v * v for v in numbers.tolist()) / len(row) + EPSILON) ** 0.5)
    return torch.stack(rows) * weight.double()


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@CENTRED
def test_normalises_each_row(
    kernels: Kernels, centred: bool, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.randn(shape, dtype=dtype, device=device) * 3 + 1
    weight = torch.randn(shape[1], dtype=dtype, device=device)
    normed = norm(kernels, x, weight, centred=centred)
    assert normed.dtype == dtype
    wanted = expected(x, weight, centred=centred)
    torch.testing.assert_close(normed.double(), wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_some_columns_are_normalised_in_place(kernels: Kernels, shape: tuple[int, int], device: torch.device) -> None:
    wide, weight = torch.randn((shape[0], shape[1] + 9), device=device), torch.randn(shape[1], device=device)
    before, some = wide.clone(), wide[:, 5 : 5 + shape[1]]
    normed = kernels[rms_norm](some.clone(), weight, EPSILON)
    kernels[rms_norm](some, weight, EPSILON, some)
    assert torch.equal(some, normed)
    assert torch.equal(wide[:, :5], before[:, :5])
    assert torch.equal(wide[:, -4:], before[:, -4:])


@pytest.mark.parametrize(("groups", "size"), [(3, 64), (2, 80), (5, 7)])
def test_a_narrower_weight_normalises_each_group_alone(
    kernels: Kernels, groups: int, size: int, device: torch.device
) -> None:
    x, weight = torch.randn((4, groups * size), device=device), torch.randn(size, device=device)
    normed = kernels[rms_norm](x, weight, EPSILON)
    assert normed.shape == x.shape
    assert torch.equal(normed.reshape(-1, size), kernels[rms_norm](x.reshape(-1, size), weight, EPSILON))


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("factor", [1.0, 0.22])
@CENTRED
def test_adds_to_the_residual_stream_and_normalises_the_rounded_sum(
    kernels: Kernels, centred: bool, factor: float, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    x, residual = torch.randn((2, *shape), dtype=dtype, device=device)
    weight = torch.randn(shape[1], dtype=dtype, device=device)
    inputs = x.clone(), residual.clone()
    normed, total = add_norm(kernels, x, residual, weight, factor, centred=centred)
    # One unit in the last place: Triton's interpreter truncates where it should round to bfloat16.
    sum_of_inputs = inputs[0].double() * factor + inputs[1].double()
    # A factor's product may be rounded before it is added, so that an error is left where the two nearly cancel.
    atol = 0 if factor == 1 else 1e-6
    torch.testing.assert_close(total.double(), sum_of_inputs, atol=atol, rtol=torch.finfo(dtype).eps)
    assert torch.equal(normed, norm(kernels, total, weight, centred=centred))
    assert torch.equal(x, inputs[0])
    assert torch.equal(residual, inputs[1])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_layer_norm_may_have_a_bias(
    kernels: Kernels, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    x, residual = torch.randn((2, *shape), dtype=dtype, device=device)
    weight, bias = torch.randn((2, shape[1]), dtype=dtype, device=device)
    normed = kernels[layer_norm](x, weight, EPSILON, bias)
    wanted = expected(x, weight, centred=True) + bias.double()
    torch.testing.assert_close(normed.double(), wanted, atol=2 * TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    normed, total = kernels[add_layer_norm](x, residual, weight, EPSILON, 0.22, bias)
    assert torch.equal(normed, kernels[layer_norm](total, weight, EPSILON, bias))


@CENTRED
def test_rows_may_be_strided_and_do_not_depend_on_each_other(
    kernels: Kernels, centred: bool, device: torch.device
) -> None:
    wide = torch.randn(6, 200, device=device)
    weight = torch.randn(96, device=device)
    together = norm(kernels, wide[:, 8:104], weight, centred=centred)
    alone = [norm(kernels, wide[row : row + 1, 8:104].contiguous(), weight, centred=centred) for row in range(6)]
    assert torch.equal(together, torch.cat(alone))
    normed, total = add_norm(kernels, wide[:, 8:104], wide[:, 104:], weight, 1.0, centred=centred)
    assert torch.equal(total, wide[:, 8:104] + wide[:, 104:])
    assert torch.equal(normed, norm(kernels, total, weight, centred=centred))
