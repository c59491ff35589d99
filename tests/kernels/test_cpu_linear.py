"""The product with a packed matrix, against float64: every backend, odd shapes, and rows that do not know of others."""

import os
import threading
from dataclasses import replace
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pyllm_kernels
import pytest
import torch
from pyllm_kernels import _cpu
from pyllm_kernels.matrix_rows import (
    GGUF_BLOCKS,
    GRID_FORMATS,
    SCALED_DTYPES,
    MatrixRows,
    Scales,
    empty_bytes,
    zero_rows,
)
from pyllm_kernels.op import BackendError, Kernels
from pyllm_kernels.ops.packed_linear import (
    NotFiniteError,
    PackedLinear,
    pack_linear,
    pack_rows,
    packed_linear,
    packed_rows,
)
from pyllm_kernels.registry import select
from pyllm_kernels.tensors import dtype_name, numpy_dtype, widened

Array = npt.NDArray[Any]

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
OURS = ["float32", "bfloat16", "float16"]
INT8_OF_BLOCKS = ["int8 of q4_0", "int8 of q4_1"]
QUANTISED = ["int8", *INT8_OF_BLOCKS, *GGUF_BLOCKS]
# Where the float16 of a block are.
HALVES = {"q8_0": [0], "q4_0": [0], "q4_1": [0, 2], "q5_0": [0], "q5_1": [0, 2], "iq4_nl": [0], "iq4_xs": [0]}
HALVES |= {"q2_k": [80, 82], "q3_k": [108], "q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208], "mxfp4": []}
HALVES |= {"iq2_xxs": [0], "iq2_xs": [0], "iq2_s": [0], "iq3_xxs": [0], "iq3_s": [0], "iq1_s": [0], "iq1_m": []}
SHAPES = [(1, 1), (32, 64), (33, 7), (97, 48), (192, 577)]  # out_features, in_features


RNG = np.random.default_rng(0)
norm = np.linalg.norm


@pytest.fixture(autouse=True)
def _seed_numpy() -> None:
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def randn(*shape: int, dtype: str = "float32") -> Array:
    return RNG.standard_normal(shape, np.float32).astype(numpy_dtype(dtype))


def zeros(*shape: int, dtype: str = "float32") -> Array:
    return np.zeros(shape, numpy_dtype(dtype))


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
    output = kernels[packed_linear](x, kernels[pack_linear](weight))
    assert output.dtype == dtype
    torch.testing.assert_close(
        output.double(), x.double() @ weight.double().T, atol=TOLERANCE[dtype] * in_features**0.5, rtol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_rows_come_out_as_they_went_in(kernels: Kernels, dtype: torch.dtype, device: torch.device) -> None:
    where = torch.device("cpu") if kernels.backend == "cpu" else device
    weight = torch.randn((70, 13), dtype=dtype, device=where)
    rows = torch.tensor([69, 0, 31, 32, 0], dtype=torch.int32, device=where)
    assert torch.equal(kernels[packed_rows](kernels[pack_linear](weight), rows), weight[rows])


def blocks_of(out_features: int, in_features: int, block_format: str) -> MatrixRows:
    """Blocks of any bits whose float16 are small: uint8 [out_features, bytes]."""
    features, block_bytes = GGUF_BLOCKS[block_format]
    blocks = RNG.integers(0, 256, (out_features, in_features // features, block_bytes), np.uint8)
    for at in HALVES[block_format]:
        scales = (RNG.random(blocks.shape[:2]) * 0.02).astype(np.float16)
        blocks[..., at : at + 2] = scales[..., None].view(np.uint8)
    if block_format == "mxfp4":
        blocks[..., 0] = RNG.integers(115, 124, blocks.shape[:2])  # the scale is an exponent
    if block_format == "iq1_m":  # Words have 4 bits of the scale each, above three scales of 3 bits.
        bits = (RNG.random(blocks.shape[:2]) * 0.02).astype(np.float16).view(np.uint16)[..., None]
        nibbles = (bits >> np.arange(0, 16, 4) & 15).astype(np.uint8)
        blocks[..., 49::2] = blocks[..., 49::2] & 15 | nibbles << 4
    return MatrixRows.of(blocks.reshape(out_features, -1), block_format)


def blocks_from(weight: Array, block_format: str) -> MatrixRows:
    """The weights as the gguf package quantises them."""
    kind = gguf.GGMLQuantizationType[block_format.upper()]
    return MatrixRows.of(gguf.quants.quantize(weight, kind), block_format)


def numbers_of(rows: MatrixRows) -> Array:
    """What the gguf package makes of them."""
    (blocks,) = rows.owners
    assert isinstance(blocks, np.ndarray)
    numbers: Array = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[rows.format.upper()])
    return numbers


def width_of(weight_format: str, features: int) -> int:
    """At least so many features, in whole blocks."""
    block = GGUF_BLOCKS.get(weight_format.removeprefix("int8 of "), (1, 0))[0]
    return -(-features // block) * block


def quantised(kernels: Kernels, shape: tuple[int, int], weight_format: str, dtype: str) -> PackedLinear:
    if weight_format == "int8":
        return kernels[pack_rows]([MatrixRows.of(randn(*shape))], "int8", dtype)
    block_format = weight_format.removeprefix("int8 of ")
    return kernels[pack_rows]([blocks_of(*shape, block_format)], weight_format.partition(" ")[0], dtype)


@pytest.mark.parametrize("weight_format", [*GGUF_BLOCKS, "float32", "float16", "bfloat16"])
def test_numbers_are_those_of_the_gguf_package(weight_format: str) -> None:
    if weight_format in GGUF_BLOCKS:
        rows = blocks_of(70, 512, weight_format)
        expected = numbers_of(rows)
    else:
        expected = randn(70, 33, dtype=weight_format)
        rows = MatrixRows.of(expected)
    assert np.array_equal(rows.numbers(), widened(expected))


@pytest.mark.parametrize("weight_format", sorted(GGUF_BLOCKS.keys() - {"q2_k", "q3_k"}))
def test_packed_blocks_take_hardly_more_memory_than_in_the_file(weight_format: str) -> None:
    features, block_bytes = GGUF_BLOCKS[weight_format]
    packed = pack_rows([blocks_of(64, 512, weight_format)], weight_format, "bfloat16")
    most = 1.09 if weight_format in GRID_FORMATS else 1.03
    assert packed.data.nbytes <= most * (64 * (512 // features) * block_bytes)


@pytest.mark.parametrize("weight_format", GGUF_BLOCKS)
def test_products_of_whole_numbers_are_those_with_the_dequantised_matrix(weight_format: str) -> None:
    """Inputs that are integers from -127 to 127, both ends in each group, are not rounded."""
    cpu = select("cpu", "cpu")
    rows = blocks_of(70, 512, weight_format)
    x = RNG.integers(-127, 128, (21, 512)).astype(np.float32)
    x.reshape(21, -1, 32)[..., 0] = 127
    numbers = numbers_of(rows).astype(np.float64)
    exact = x @ numbers.T
    products = cpu[packed_linear](x, cpu[pack_rows]([rows], weight_format, "float32"))
    magnitudes = np.abs(x) @ np.abs(numbers).T
    # Some 70 additions of float32, each off by at most 2^-24 of what there is.
    assert (np.abs(products - exact) <= 70 * 2.0**-24 * magnitudes).all()


@pytest.mark.parametrize("dtype", OURS)
@pytest.mark.parametrize(("out_features", "in_features"), [(1, 32), (33, 64), (97, 576)])
@pytest.mark.parametrize("tokens", [0, 1, 3, 13, 50])
@pytest.mark.parametrize("weight_format", QUANTISED)
def test_quantised_products_are_the_specified_ones(
    weight_format: str, tokens: int, out_features: int, in_features: int, dtype: str
) -> None:
    in_features = width_of(weight_format, in_features)
    x = randn(tokens, in_features, dtype=dtype)
    cpu, reference = select("cpu", "cpu"), select("reference", "cpu")
    block_format = weight_format.removeprefix("int8 of ")
    weight = randn(out_features, in_features)
    if weight_format == "int8":
        rows = MatrixRows.of(weight)
    elif weight_format in INT8_OF_BLOCKS:  # some of whose integers reach the ends that scales are made of
        rows = blocks_from(weight, block_format)
    else:
        rows = blocks_of(out_features, in_features, block_format)
    packed_as = weight_format.partition(" ")[0]
    output = cpu[packed_linear](x, cpu[pack_rows]([rows], packed_as, dtype))
    specified = reference[packed_linear](x, reference[pack_rows]([rows], packed_as, dtype))
    assert output.dtype == specified.dtype == x.dtype
    # They differ in the rounding of their sums alone.
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    size = max(1.0, float(np.abs(widened(specified)).max())) if tokens else 1.0
    np.testing.assert_allclose(widened(output), widened(specified), atol=tolerance * size, rtol=tolerance)


@pytest.mark.parametrize(
    ("weight_format", "most"), [("int8", 0.01), ("int8 of q4_0", 0.13), ("q8_0", 0.01), ("q5_1", 0.05)]
)
def test_quantising_loses_little(weight_format: str, most: float) -> None:
    weight, x = randn(64, 576), randn(20, 576)
    rows = MatrixRows.of(weight)
    if weight_format != "int8":
        kind = weight_format.removeprefix("int8 of ")
        rows = blocks_from(weight, kind)
    for kernels in (select("cpu", "cpu"), select("reference", "cpu")):
        output = kernels[packed_linear](x, kernels[pack_rows]([rows], weight_format.partition(" ")[0], "float32"))
        exact = x @ weight.T
        assert norm(output - exact) / norm(exact) < most


@pytest.mark.parametrize("dtype", OURS)
@pytest.mark.parametrize("weight_format", GGUF_BLOCKS)
def test_rows_of_blocks_come_out_as_numbers(weight_format: str, dtype: str) -> None:
    blocks = blocks_of(70, 256, weight_format)
    rows = np.array([69, 0, 31, 32, 0], np.int32)
    for kernels in (select("cpu", "cpu"), select("reference", "cpu")):
        out = kernels[packed_rows](kernels[pack_rows]([blocks], weight_format, dtype), rows)
        assert np.array_equal(out, numbers_of(blocks)[rows].astype(numpy_dtype(dtype)))


@pytest.mark.parametrize("dtype", OURS)
@pytest.mark.parametrize("in_features", [13, 36, 64, 577, 1536])
def test_rows_of_int8_come_out_near_what_went_in(in_features: int, dtype: str) -> None:
    weight = randn(70, in_features, dtype=dtype)
    rows = np.array([69, 0, 31], np.int32)
    cpu, reference = (
        kernels[packed_rows](kernels[pack_rows]([MatrixRows.of(weight)], "int8", dtype), rows)
        for kernels in map(select, *both_backends())
    )
    assert np.array_equal(cpu, reference)
    assert norm(widened(cpu - weight[rows])) < 0.015 * norm(widened(weight[rows]))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_outliers_leave_the_rest_of_an_int8_row_precise(backend: str) -> None:
    kernels = select(backend, "cpu")
    weight, x = randn(64, 576), randn(20, 576)
    x[:, 100] = 100.0
    weight[:, 100] = 0.0  # the product is of the other features alone
    output, exact = kernels[packed_linear](x, int8(kernels, weight)), x @ weight.T
    # With 8 bits it is 0.23: a step of the integers would be most of what another feature is.
    assert norm(output - exact) / norm(exact) < 0.01


@pytest.mark.parametrize("dtype", OURS)
@pytest.mark.parametrize("block_format", ["q4_0", "q4_1"])
def test_int8_of_blocks_is_nearly_what_they_stand_for(block_format: str, dtype: str) -> None:
    weight = randn(70, 96)
    weight[3] = 0
    blocks = blocks_from(weight, block_format)
    rows = np.array([69, 0, 3, 31], np.int32)
    cpu, reference = (
        kernels[packed_rows](kernels[pack_rows]([blocks], "int8", dtype), rows)
        for kernels in map(select, *both_backends())
    )
    tolerance = 1.3e-6 if dtype == "float32" else 1.6e-2
    np.testing.assert_allclose(widened(cpu), widened(reference), rtol=tolerance, atol=1e-5)
    numbers = numbers_of(blocks)[rows]
    assert not cpu[2].any()
    assert norm(widened(cpu) - numbers) < 0.01 * norm(numbers)


def int8(kernels: Kernels, weight: Array) -> PackedLinear:
    return kernels[pack_rows]([MatrixRows.of(weight)], "int8", dtype_name(weight.dtype))


def both_backends() -> tuple[tuple[str, str], tuple[str, str]]:
    return ("cpu", "reference"), ("cpu", "cpu")


def test_out_may_be_columns_of_a_wider_tensor() -> None:
    x, wide = randn(3, 64), np.zeros((3, 20), np.float32)
    for kernels in map(select, *both_backends()):
        packed = int8(kernels, randn(7, 64))
        out = wide[:, 5:12]
        assert kernels[packed_linear](x, packed, out) is out
        assert np.array_equal(wide[:, 5:12], kernels[packed_linear](x, packed))
        assert not wide[:, :5].any()
        assert not wide[:, 12:].any()


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (zeros(2, 7), r"out is of shape \[2, 7\]: it must be of \[2, 6\]"),
        (zeros(2, 6, dtype="bfloat16"), "out is bfloat16: give float32"),
        (zeros(6, 2).T, "out is .*: give contiguous rows that do not overlap"),
        (np.broadcast_to(zeros(6), (2, 6)), "out is .*: give contiguous rows that do not overlap"),
    ],
)
def test_an_out_that_does_not_fit_is_refused(packed: PackedLinear, out: Array, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        packed_linear(zeros(2, 8), packed, out)


@pytest.mark.parametrize("dtype", OURS)
@pytest.mark.parametrize("weight_format", ["floats", *QUANTISED])
def test_a_row_is_the_same_alone_among_others_and_on_any_threads(weight_format: str, dtype: str) -> None:
    kernels = select("cpu", "cpu")
    shape = (960, width_of(weight_format, 576))
    is_float = weight_format == "floats"
    packed = (
        kernels[pack_linear](randn(*shape, dtype=dtype))
        if is_float
        else quantised(kernels, shape, weight_format, dtype)
    )
    x = randn(77, shape[1], dtype=dtype)
    alone = np.concatenate([kernels[packed_linear](row[None], packed) for row in x])
    before = pyllm_kernels.num_threads()
    try:
        for num_threads in (1, 2, 3):
            pyllm_kernels.set_num_threads(num_threads)
            assert pyllm_kernels.num_threads() == num_threads
            assert np.array_equal(kernels[packed_linear](x, packed), alone)
            assert np.array_equal(kernels[packed_linear](x[5:30], packed), alone[5:30])
    finally:
        pyllm_kernels.set_num_threads(before)


def test_a_weight_may_be_strided() -> None:
    kernels = select("cpu", "cpu")
    weight = randn(20, 64)[:, 3:40]
    assert np.array_equal(kernels[pack_linear](weight).data, kernels[pack_linear](weight.copy()).data)


@pytest.fixture
def packed() -> PackedLinear:
    return pack_linear(zeros(6, 8))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (zeros(2, 7), r"x is of shape \[2, 7\]: it must be of \[2, 8\]"),
        (zeros(2), r"x is of shape \[2\]: give 2 dimensions"),
        (zeros(2, 8, dtype="bfloat16"), "x is bfloat16: give float32"),
        (zeros(8, 2).T, r"x is .* with strides \[1, 2\]: give a contiguous array"),
    ],
)
def test_an_input_that_does_not_fit_is_refused(packed: PackedLinear, x: Array, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        packed_linear(x, packed)


def test_rows_that_are_not_there_are_refused(packed: PackedLinear) -> None:
    for row in (6, -1):
        with pytest.raises(IndexError, match=f"row {row} of a matrix of 6 rows"):
            packed_rows(packed, np.array([row], np.int32))
    with pytest.raises(ValueError, match="rows is int64: give int32"):
        packed_rows(packed, np.array([0]))
    with pytest.raises(ValueError, match=r"rows is of shape \[1, 1\]: it must be of \[1\]"):
        packed_rows(packed, np.array([[0]], np.int32))


def test_rows_of_another_kind_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no blocks of tq2_0: use q8_0, q4_0, .*, iq1_m, or floats"):
        MatrixRows.of(zeros(2, 66, dtype="uint8"), "tq2_0")
    with pytest.raises(ValueError, match=r"blocks are uint8 \[2, 35\]: q8_0 has uint8, 34 of them a block"):
        MatrixRows.of(zeros(2, 35, dtype="uint8"), "q8_0")
    with pytest.raises(ValueError, match=r"rows are \[3\]: give a matrix"):
        MatrixRows.of(zeros(3))
    rows, wider = blocks_of(2, 32, "q8_0"), blocks_of(2, 64, "q8_0")
    with pytest.raises(ValueError, match=r"rows of \[32, 64\] features cannot lie one below the other"):
        pack_rows([rows, wider], "q8_0", "float32")
    for kernels in (select("cpu", "cpu"), select("reference", "cpu")):
        with pytest.raises(ValueError, match="q4_0 cannot be packed from rows of q8_0"):
            kernels[pack_rows]([rows], "q4_0", "float32")
    with pytest.raises(ValueError, match="no rows of odd can be read"):
        _cpu.read_rows(replace(rows, format="odd"), zeros(2, 32))
    layout = _cpu.Linear("float32", "float32", 32, 3)
    with pytest.raises(ValueError, match="2 rows of a matrix of 3"):
        layout.pack([rows], empty_bytes(layout.packed_bytes))
    with pytest.raises(ValueError, match="rows of 64 features in a matrix of 32"):
        layout.pack([wider], empty_bytes(layout.packed_bytes))
    with pytest.raises(ValueError, match=r"packed is of shape \[3\]: it must be of \[4096\]"):
        layout.pack([rows, zero_rows(rows, 1)], empty_bytes(3))
    with pytest.raises(ValueError, match=r"addresses is int32: give int64"):
        _cpu.copy_rows(replace(rows, addresses=np.zeros(2, np.int32)), zeros(2, 34, dtype="uint8"))
    with pytest.raises(ValueError, match=r"out is of shape \[2, 33\]: it must be of \[2, 34\]"):
        _cpu.copy_rows(rows, zeros(2, 33, dtype="uint8"))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_the_first_row_that_is_not_finite_is_named(backend: str) -> None:
    weight = randn(70, 32)
    weight[[40, 41], 3] = np.nan, np.inf
    for weight_format in ("float32", "int8"):
        with pytest.raises(NotFiniteError, match="row 40 of the matrix has a NaN or an infinity") as caught:
            select(backend, "cpu")[pack_rows]([MatrixRows.of(weight)], weight_format, "float32")
        assert caught.value.row == 40


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="no linear of float64: use float32, bfloat16 or float16"):
        _cpu.Linear("float64", "float64", 1, 1)
    with pytest.raises(ValueError, match="no float32 weights with bfloat16 inputs: use bfloat16, int8, q8_0"):
        _cpu.Linear("float32", "bfloat16", 1, 1)
    with pytest.raises(ValueError, match="a linear of 0 inputs and 3 outputs"):
        _cpu.Linear("float32", "float32", 0, 3)
    with pytest.raises(ValueError, match="33 inputs do not fill blocks of 32: split the matrix where a block ends"):
        _cpu.Linear("q4_0", "float32", 33, 3)
    with pytest.raises(ValueError, match="0 threads: choose 1 to 1,024"):
        pyllm_kernels.set_num_threads(0)
    with pytest.raises(BackendError):
        select("cpu", "cuda")


def test_what_is_no_matrix_is_refused() -> None:
    for shape in [(3,), (2, 3, 4), (3000, 4000, 0)]:
        with pytest.raises(ValueError, match="give a matrix"):
            pack_linear(zeros(*shape))


def test_data_that_is_not_what_its_layout_says_is_refused() -> None:
    packed, x = pack_rows([MatrixRows.of(randn(8, 64))], "int8", "float32"), randn(1, 64)
    for data in (packed.data[:1], packed.data.view(np.int8), np.repeat(packed.data, 2)[::2]):
        with pytest.raises(ValueError, match="packed is "):
            packed_linear(x, replace(packed, data=data))


@pytest.mark.filterwarnings("ignore:.*fork")  # Python warns of threads beside it, which are what this is about.
def test_a_forked_process_computes() -> None:
    cpu, x = select("cpu", "cpu"), randn(64, 512)
    packed = cpu[pack_linear](randn(512, 512))
    expected, stop = cpu[packed_linear](x, packed), threading.Event()

    def keep_busy() -> None:
        while not stop.is_set():
            cpu[packed_linear](x, packed)

    before = pyllm_kernels.num_threads()
    pyllm_kernels.set_num_threads(3)
    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                os._exit(0 if np.array_equal(cpu[packed_linear](x, packed), expected) else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        busy.join()
        pyllm_kernels.set_num_threads(before)


def scaled_rows(dtype: str, num_rows: int, in_features: int, features: int) -> MatrixRows:
    """Bytes of any value that is a number, with a scale for each row and so many features."""
    bits = RNG.integers(-128, 128, (num_rows, in_features), np.int8)
    if dtype == "float8_e4m3fn":
        bits[bits & 0x7F == 0x7F] = 0
    scales = RNG.random((num_rows, -(-in_features // features)), np.float32) + np.float32(0.01)
    return MatrixRows.scaled(bits.view(numpy_dtype(dtype)), Scales(scales, features))


def numbers_of_scaled(rows: MatrixRows) -> Array:
    (elements,) = rows.owners
    assert isinstance(elements, np.ndarray)
    assert rows.scales is not None
    scales = np.repeat(rows.scales.numbers, rows.scales.features, 1)
    return scales[:, : rows.in_features] * widened(elements)


@pytest.mark.parametrize("dtype", SCALED_DTYPES)
@pytest.mark.parametrize("features", [1, 7, 32, 100, 700])
@pytest.mark.parametrize("in_features", [77, 600])
def test_bytes_are_numbers_by_their_scales(dtype: str, features: int, in_features: int) -> None:
    rows = scaled_rows(dtype, 70, in_features, features)
    assert np.array_equal(rows.numbers(), numbers_of_scaled(rows))
    assert np.array_equal(zero_rows(rows, 3).numbers(), zeros(3, in_features))
    packed = pack_rows([rows, zero_rows(rows, 3)], "float32", "float32")
    expected = np.concatenate((numbers_of_scaled(rows), zeros(3, in_features)))
    assert np.array_equal(packed_linear(np.eye(in_features, dtype=np.float32), packed), expected.T)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_integers_with_a_scale_a_row_are_kept_as_they_are(backend: str) -> None:
    kernels = select(backend, "cpu")
    kept, anew = scaled_rows("int8", 40, 64, 64), scaled_rows("int8", 33, 64, 32)
    packed = kernels[pack_rows]([kept, anew, zero_rows(kept, 2)], "int8", "float32")
    found = kernels[packed_rows](packed, np.arange(75, dtype=np.int32))
    assert np.array_equal(found[:40], numbers_of_scaled(kept))
    assert np.array_equal(found[73:], zeros(2, 64))
    steps = np.abs(numbers_of_scaled(anew)).max(1, keepdims=True) / 127
    assert (np.abs(found[40:73] - numbers_of_scaled(anew)) <= 0.501 * steps).all()
    x = RNG.integers(-127, 128, (5, 64)).astype(np.float32)
    x[:, 0] = 127.0
    products = select("reference", "cpu")[packed_linear](
        x, select("reference", "cpu")[pack_rows]([kept, anew, zero_rows(kept, 2)], "int8", "float32")
    )
    np.testing.assert_allclose(kernels[packed_linear](x, packed), products, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize(
    ("dtype", "scales", "message"),
    [
        ("int8", None, "rows of int8 need scales"),
        ("float16", Scales(np.ones((2, 1), np.float32), 32), "rows of float16 take no scales"),
        ("int8", Scales(np.ones((2, 2), np.float32), 32), r"scales is of shape \[2, 2\]: it must be of \[2, 1\]"),
        ("int8", Scales(np.ones((2, 1)), 32), "scales is float64: give float32"),
        ("int8", Scales(np.ones((2, 32), np.float32), 0), "rows of int8 need scales"),
    ],
)
def test_scales_must_fit_their_rows(dtype: str, scales: Scales | None, message: str) -> None:
    rows = MatrixRows(dtype, 32, np.zeros(2, np.int64), (), scales)
    with pytest.raises(ValueError, match=message):
        rows.numbers()
    with pytest.raises(ValueError, match=message):
        rows.stored()
