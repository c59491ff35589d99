"""The product with a packed matrix, against float64: every backend, odd shapes, and rows that do not know of others."""

import pyllm_kernels
import pytest
import torch
from pyllm_kernels import BackendError, Kernels, PackedLinear, _cpu, select

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
OURS = [torch.float32, torch.bfloat16]
SHAPES = [(1, 1), (32, 64), (33, 7), (97, 48), (192, 577)]  # out_features, in_features


@pytest.fixture(params=["reference", "cpu", "triton"])
def kernels(request: pytest.FixtureRequest, device: torch.device) -> Kernels:
    return select(request.param, "cpu" if request.param == "cpu" else device)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
@pytest.mark.parametrize("tokens", [0, 1, 3, 13, 50])
def test_the_product(
    kernels: Kernels, tokens: int, out_features: int, in_features: int, dtype: torch.dtype, device: torch.device
) -> None:
    where = torch.device("cpu") if kernels.backend == "cpu" else device
    weight = torch.randn((out_features, in_features), dtype=dtype, device=where)
    x = torch.randn((tokens, in_features), dtype=dtype, device=where)
    output = kernels.packed_linear(x, kernels.pack_linear(weight))
    assert output.dtype == dtype
    torch.testing.assert_close(
        output.double(), x.double() @ weight.double().T, atol=TOLERANCE[dtype] * in_features**0.5, rtol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_rows_come_out_as_they_went_in(kernels: Kernels, dtype: torch.dtype, device: torch.device) -> None:
    where = torch.device("cpu") if kernels.backend == "cpu" else device
    weight = torch.randn((70, 13), dtype=dtype, device=where)
    rows = torch.tensor([69, 0, 31, 32, 0], dtype=torch.int32, device=where)
    assert torch.equal(kernels.packed_rows(kernels.pack_linear(weight), rows), weight[rows])


@pytest.mark.parametrize("dtype", OURS, ids=str)
def test_a_row_is_the_same_alone_among_others_and_on_any_threads(dtype: torch.dtype) -> None:
    kernels = select("cpu", "cpu")
    packed = kernels.pack_linear(torch.randn(960, 576).to(dtype))
    x = torch.randn(77, 576).to(dtype)
    alone = torch.cat([kernels.packed_linear(row, packed) for row in x.split(1)])
    before = pyllm_kernels.num_threads()
    try:
        for num_threads in (1, 2, 3):
            pyllm_kernels.set_num_threads(num_threads)
            assert pyllm_kernels.num_threads() == num_threads
            assert torch.equal(kernels.packed_linear(x, packed), alone)
            assert torch.equal(kernels.packed_linear(x[5:30].contiguous(), packed), alone[5:30])
    finally:
        pyllm_kernels.set_num_threads(before)


def test_a_weight_may_be_strided() -> None:
    kernels = select("cpu", "cpu")
    weight = torch.randn(20, 64)[:, 3:40]
    assert torch.equal(kernels.pack_linear(weight).data, kernels.pack_linear(weight.contiguous()).data)


@pytest.fixture
def packed() -> PackedLinear:
    return select("cpu", "cpu").pack_linear(torch.zeros(6, 8))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 7), r"x is torch.float32 \[2, 7\], but the packed weight is torch.float32 \[6, 8\]"),
        (torch.zeros(2, 8, dtype=torch.bfloat16), "x is torch.bfloat16"),
        (torch.zeros(8, 2).T, r"x is on cpu with strides \(1, 2\): give a contiguous CPU tensor"),
    ],
)
def test_what_a_pointer_cannot_say_is_checked(packed: PackedLinear, x: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select("cpu", "cpu").packed_linear(x, packed)


def test_rows_that_are_not_there_are_refused(packed: PackedLinear) -> None:
    for row in (6, -1):
        with pytest.raises(IndexError, match=f"row {row} of a matrix of 6 rows"):
            select("cpu", "cpu").packed_rows(packed, torch.tensor([row], dtype=torch.int32))
    with pytest.raises(ValueError, match=r"rows are torch\.int64: give int32"):
        select("cpu", "cpu").packed_rows(packed, torch.tensor([0]))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="no linear of float16: use float32 or bfloat16"):
        _cpu.Linear("float16", 1, 1)
    with pytest.raises(ValueError, match="a linear of 0 inputs and 3 outputs"):
        _cpu.Linear("float32", 0, 3)
    with pytest.raises(ValueError, match="0 threads: choose 1 to 1,024"):
        pyllm_kernels.set_num_threads(0)
    with pytest.raises(BackendError):
        select("cpu", "cuda")
