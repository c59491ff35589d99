"""What a layer's matrices are packed as: in which format, and in how many pieces."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from pyllm_kernels import FLOAT_DTYPES, GGUF_BLOCKS, SCALED_DTYPES, MatrixRows, Scales, select
from pyllm_kernels.ops.packed_linear import kept_format, packed_linear
from pyllm_kernels.tensors import Tensor, numpy_dtype

from pyllm.errors import ConfigError
from pyllm.workers.devices.host import HostDevice
from pyllm.workers.layers.packing import pack
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.weights import WHOLE, MatrixPart

IN_FEATURES = 256
ONES = np.ones((1, IN_FEATURES), np.float32)
PLACEMENT = WeightPlacement(RankGroup(), "float32", HostDevice(), select("cpu", "cpu"), "int8")


@dataclass
class Reader:
    """Matrices by name, each of a kind: blocks full of zeros, or floats full of ones."""

    kinds: dict[str, str]

    def read(self, name: str, shape: tuple[int, ...], out: Tensor, rows: slice = WHOLE, columns: slice = WHOLE) -> None:
        raise AssertionError("a CPU packs rows where they lie")

    def rows(
        self,
        name: str,
        shape: tuple[int, int],
        rows: slice = WHOLE,
        columns: slice = WHOLE,
        keep_quantised: bool = False,
    ) -> MatrixRows:
        kind, num_rows, num_columns = self.kinds[name], len(range(shape[0])[rows]), len(range(shape[1])[columns])
        if kind in FLOAT_DTYPES:
            return MatrixRows.of(np.ones((num_rows, num_columns), numpy_dtype(kind)))
        if kind in SCALED_DTYPES:
            groups = 1 if kind == "int8" else 2
            scales = Scales(np.zeros((num_rows, groups), np.float32), num_columns // groups)
            return MatrixRows.scaled(np.zeros((num_rows, num_columns), SCALED_DTYPES[kind]), scales)
        features, block_bytes = GGUF_BLOCKS[kind]
        return MatrixRows.of(np.zeros((num_rows, num_columns // features * block_bytes), np.uint8), kind)

    def release(self, names: Iterable[str]) -> None:
        del names


@pytest.mark.parametrize(
    ("quantization", "kinds", "sizes", "formats"),
    [
        ("int8", ["q4_1", "q4_1", "q4_1"], [10 + 20 + 30 + 4], ["int8"]),
        ("int8", ["q4_1", "q4_1", "q4_0"], [30, 30 + 4], ["int8"]),
        ("int8", ["q4_1", "q8_0", "float32"], [10, 50 + 4], ["int8"]),
        ("int8", ["float16", "q4_0", "float32"], [10, 20, 30 + 4], ["int8"]),
        ("gguf", ["q4_k", "q4_k", "q6_k"], [30, 30 + 4], ["q4_k", "q6_k"]),
        ("gguf", ["iq2_xxs", "iq2_xxs", "iq3_s"], [30, 30 + 4], ["iq2_xxs", "iq3_s"]),
        ("gguf", ["q4_k", "float16", "bfloat16"], [10, 50 + 4], ["q4_k", "float32"]),
        ("awq", ["q4_1", "q4_1", "float32"], [30, 30 + 4], ["q4_1", "float32"]),
        ("compressed-tensors", ["int8", "q8_0", "float8_e4m3fn"], [10, 20, 30 + 4], ["int8", "q8_0", "float32"]),
        ("compressed-tensors", ["int8", "int8", "int8"], [60 + 4], ["int8"]),
        ("int8", ["int8", "float8_e4m3fn", "float32"], [60 + 4], ["int8"]),
        ("none", ["int8", "float8_e4m3fn", "q4_1"], [60 + 4], ["float32"]),
        ("none", ["q4_k", "q8_0", "float32"], [60 + 4], ["float32"]),
    ],
)
def test_parts_lie_in_one_matrix_where_they_are_packed_alike(
    quantization: str, kinds: list[str], sizes: list[int], formats: list[str]
) -> None:
    placement = replace(PLACEMENT, quantization=quantization)
    reader = Reader({str(index): kind for index, kind in enumerate(kinds)})
    parts = [MatrixPart(str(index), (size, IN_FEATURES)) for index, size in enumerate([10, 20, 30])]
    packed = pack(reader, placement, parts, num_padding_rows=4)
    assert list(dict.fromkeys(part.format for part in packed)) == formats
    assert [part.out_features for part in packed] == sizes
    products = np.concatenate([placement.kernels[packed_linear](ONES, part)[0] for part in packed])
    expected = np.repeat([IN_FEATURES if kind in FLOAT_DTYPES else 0 for kind in [*kinds, ""]], [10, 20, 30, 4])
    np.testing.assert_allclose(products, expected, rtol=1e-6)


def test_a_parameter_that_is_not_finite_is_named() -> None:
    class Odd(Reader):
        def rows(self, name: str, shape: tuple[int, int], *cuts: slice, keep_quantised: bool = False) -> MatrixRows:
            found = super().rows(name, shape, *cuts, keep_quantised=keep_quantised)
            if name == "1":
                (floats,) = found.owners
                floats[5, 0] = np.inf  # type: ignore[index] # it is an array
            return found

    parts = [MatrixPart(str(index), (10, IN_FEATURES)) for index in range(3)]
    with pytest.raises(ConfigError, match="parameter '1' has a NaN or an infinity"):
        pack(Odd(dict.fromkeys("012", "float32")), PLACEMENT, parts)


def test_what_a_device_has_no_kernel_for_becomes_floats_of_the_exact_numbers() -> None:
    class Rounded(Reader):
        def rows(self, name: str, shape: tuple[int, int], *cuts: slice, keep_quantised: bool = False) -> MatrixRows:
            return Reader({name: "q8_0" if keep_quantised else "float32"}).rows(name, shape, *cuts)

    nothing = PLACEMENT.kernels.replaced(kept_format, lambda rows: "")
    placement = replace(PLACEMENT, quantization="gptq", kernels=nothing)
    (packed,) = pack(Rounded({}), placement, [MatrixPart("m", (10, IN_FEATURES))])
    product = placement.kernels[packed_linear](ONES, packed)
    np.testing.assert_allclose(product, np.full((1, 10), IN_FEATURES), rtol=1e-6)


def test_a_gpu_keeps_blocks_of_4_and_8_bits_and_makes_floats_of_the_others() -> None:
    kinds = ["q4_0", "q4_1", "q8_0", "q4_k", "float32"]
    placement = replace(PLACEMENT, dtype="float16", quantization="gguf", kernels=select("triton", "cpu"))
    reader = Reader({str(index): kind for index, kind in enumerate(kinds)})
    parts = [MatrixPart(str(index), (10, IN_FEATURES)) for index in range(len(kinds))]
    packed = pack(reader, placement, parts)
    assert [(part.format, part.out_features) for part in packed] == [
        *[("q4_0", 10), ("q4_1", 10), ("q8_0", 10), ("float16", 20)],
    ]
