"""Matrices of files on a GPU: what is kept as it is, what it is multiplied to, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pyllm_kernels.cards import Card
from pyllm_kernels.matrix_rows import GRID_FORMATS, MatrixRows
from pyllm_kernels.ops.packed_linear import (
    NotFiniteError,
    PackedLinear,
    kept_format,
    pack_rows,
    packed_linear,
    packed_rows,
)
from pyllm_kernels.registry import batch_invariant, select
from pyllm_kernels.tensors import dtype_name
from pyllm_kernels.torch_bridge import as_tensor

from tests.kernels.quantised_weights import FEATURES, random_blocks, rows_of

KINDS = ["q4_0", "q4_1", "q8_0", "q5_0", "iq4_nl", "int8", "fp8 128", "fp8 64", "fp8 4"]


def packed(backend: str, parts: list[MatrixRows], dtype: torch.dtype) -> PackedLinear:
    kernels = select(backend, "cpu")
    return kernels[pack_rows](parts, kernels[kept_format](parts[0]) or dtype_name(dtype), dtype_name(dtype)).moved(
        as_tensor
    )


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        *((kind, kind) for kind in ("q4_0", "q4_1", "q8_0", "int8")),
        *((kind, "q8_0") for kind in ("q5_0", "iq4_nl")),
        ("fp8 64", "float8_e4m3fn"),
    ],
)
def test_what_is_kept_is_the_files(kind: str, kept: str) -> None:
    rows = rows_of(kind, 5)
    assert select("triton", "cpu")[kept_format](rows) == kept
    found = packed("triton", [rows], torch.float32)
    assert (found.format, found.out_features) == (kept, 5)
    assert found.nbytes <= 5 * FEATURES * 1.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_products_and_rows_are_those_of_the_numbers(kind: str, dtype: torch.dtype) -> None:
    parts = [rows_of(kind, 40), rows_of(kind, 7)]
    kernels, numbers = select("triton", "cpu"), torch.cat([as_tensor(part.numbers()) for part in parts])
    found = packed("triton", parts, dtype)
    x = torch.randn(3, FEATURES).to(dtype)
    expected = x.double() @ numbers.double().T
    tolerance = 0.05 if kind == "int8" else 1e-5 if dtype is torch.float32 else 0.02
    product = kernels[packed_linear](x, found)
    assert product.dtype == dtype
    assert (product.double() - expected).norm() <= tolerance * expected.norm()
    out = torch.zeros(3, 60, dtype=dtype)[:, 5:52]
    assert torch.equal(kernels[packed_linear](x, found, out), product)
    if found.factors:
        invariant = batch_invariant(kernels)[packed_linear](x, found)
        assert (invariant.double() - expected).norm() <= tolerance * expected.norm()
    chosen = torch.tensor([46, 0, 7], dtype=torch.int32)
    torch.testing.assert_close(kernels[packed_rows](found, chosen), numbers[chosen].to(dtype), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["q8_0", "q5_0", "iq4_nl"])
def test_8_bits_lose_nothing(kind: str, dtype: torch.dtype) -> None:
    """Beside the floats that those who have no such kernel make of the file; blocks are random bits."""
    rows = random_blocks(kind, 9)
    found, kernels = packed("triton", [rows], dtype), select("triton", "cpu")
    floats = as_tensor(rows.numbers()).to(dtype)
    assert torch.equal(kernels[packed_rows](found, torch.arange(9, dtype=torch.int32)), floats)
    if dtype is not torch.bfloat16:  # whose `tl.dot` the interpreter gets wrong
        assert torch.equal(kernels[packed_linear](torch.eye(FEATURES, dtype=dtype), found), floats.T)


@pytest.mark.parametrize("kind", sorted(GRID_FORMATS - {"iq1_m"}))  # whose scale is not at the start
def test_formats_with_a_grid_become_8_bits(kind: str) -> None:
    rows = random_blocks(kind, 9, 512)
    assert select("triton", "cpu")[kept_format](rows) == "q8_0"
    found = packed("triton", [rows], torch.float32)
    numbers = as_tensor(rows.numbers())
    near = select("triton", "cpu")[packed_rows](found, torch.arange(9, dtype=torch.int32))
    largest = numbers.view(9, -1, 32).abs().amax(-1, keepdim=True)
    # Half a step, and what float16 rounds off the scale.
    assert ((near - numbers).view(9, -1, 32).abs() <= largest * (0.5 / 127 + 2**-10)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0", "int8", "fp8 128", "fp8 64"])
def test_batch_invariant_rows_are_bitwise_the_same_alone(kind: str, dtype: torch.dtype) -> None:
    found = packed("triton", [rows_of(kind, 150)], dtype)
    linear = batch_invariant(select("triton", "cpu"))[packed_linear]
    x = torch.randn(70, FEATURES).to(dtype)
    together = linear(x, found)
    for rows in (slice(0, 1), slice(3, 19), slice(17, 34), slice(69, 70)):
        assert torch.equal(linear(x[rows].contiguous(), found), together[rows])


@pytest.mark.parametrize("kind", ["q4_1", "q8_0", "int8", "fp8 64"])
def test_numbers_that_are_not_finite_are_named(kind: str) -> None:
    rows = rows_of(kind, 6)
    if rows.scales is None:
        (blocks,) = rows.owners
        assert isinstance(blocks, np.ndarray)
        blocks[4, :2] = np.array([np.nan], np.float16).view(np.uint8)
    else:
        rows.scales.numbers[4, 0] = np.inf
    with pytest.raises(NotFiniteError, match="row 4"):
        packed("triton", [rows], torch.float32)
    whole = rows_of("fp8 64", 6)
    (elements,) = whole.owners
    assert isinstance(elements, np.ndarray)
    elements.view(np.uint8)[5, 3] = 0xFF
    with pytest.raises(NotFiniteError, match="row 5"):
        packed("triton", [whole], torch.float32)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_cpu_keeps_blocks_and_int8(backend: str) -> None:
    kernels = select(backend, "cpu")
    assert [kernels[kept_format](rows_of(kind, 2)) for kind in KINDS] == [*KINDS[:6], "", "", ""]


def test_stored_bytes_are_those_of_the_rows() -> None:
    rows = rows_of("q4_0", 4)
    (blocks,) = rows.owners
    assert isinstance(blocks, np.ndarray)
    assert np.array_equal(rows.stored(), blocks)
    reversed_rows = replace(rows, addresses=np.append(rows.addresses[::-1], 0))
    assert np.array_equal(reversed_rows.stored(), np.concatenate((blocks[::-1], np.zeros_like(blocks[:1]))))


def test_tensor_cores_are_for_two_bytes_from_ampere_on() -> None:
    from pyllm_kernels.gpu.linears.linear_tile import float_tile, has_tensor_cores

    half, single = torch.zeros(1, dtype=torch.float16), torch.zeros(1)
    found = [has_tensor_cores(x, Card(capability, 100)) for x in (half, single) for capability in (75, 80, 90)]
    assert found == [False, True, True, False, False, False]
    assert len({float_tile(False, rows, 32, False) for rows in (1, 16, 17, 500)}) == 1
    assert len({float_tile(True, rows, 64, False) for rows in (1, 16, 17, 500)}) == 2
    assert len({float_tile(True, rows, 64, True) for rows in (1, 16, 17, 500)}) == 1
