"""What a layer's matrices are packed as: in which format, and in how many pieces."""

from dataclasses import dataclass, field

import pytest
import torch
from pyllm_kernels import BLOCK_BYTES, select
from torch import Tensor

from pyllm.workers.layers.packing import MatrixPart, pack
from pyllm.workers.layers.placement import Placement
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.loaders.weights import WHOLE

IN_FEATURES = 64
PLACEMENT = Placement(RankGroup(), torch.float32, torch.device("cpu"), select("cpu", "cpu"), "int8")


@dataclass
class Reader:
    """Matrices by name, each of a kind: of blocks full of zeros, or of floats full of ones."""

    kinds: dict[str, str]
    reads: list[str] = field(default_factory=list)

    def read(self, name: str, shape: tuple[int, ...], out: Tensor, rows: slice = WHOLE, columns: slice = WHOLE) -> None:
        del shape, rows, columns
        self.reads.append(name)
        out.fill_(1)

    def block_format(self, name: str, shape: tuple[int, int], columns: slice = WHOLE) -> str | None:
        del shape, columns
        return self.kinds[name] if self.kinds[name] in BLOCK_BYTES else None

    def read_blocks(
        self, name: str, shape: tuple[int, int], rows: slice = WHOLE, columns: slice = WHOLE
    ) -> tuple[str, Tensor]:
        kind = self.kinds[name]
        num_rows = len(range(shape[0])[rows])
        num_groups = len(range(shape[1])[columns]) // 32
        return kind, torch.zeros(num_rows, num_groups * BLOCK_BYTES[kind], dtype=torch.uint8)


@pytest.mark.parametrize(
    ("kinds", "sizes", "reads"),
    [
        (["q4_1", "q4_1", "q4_1"], [10 + 20 + 30 + 4], []),
        (["q4_1", "q4_1", "q4_0"], [30, 30 + 4], []),
        (["q4_1", "q8_0", "f32"], [10, 50 + 4], ["1", "2"]),
        (["f32", "q4_0", "f32"], [10, 20, 30 + 4], ["0", "2"]),
    ],
)
def test_int8_is_made_of_blocks_of_four_bits_where_there_are_any(
    kinds: list[str], sizes: list[int], reads: list[str]
) -> None:
    reader = Reader({str(index): kind for index, kind in enumerate(kinds)})
    parts = [MatrixPart(str(index), (size, IN_FEATURES)) for index, size in enumerate([10, 20, 30])]
    packed = pack(reader, PLACEMENT, parts, num_padding_rows=4)
    assert [part.format for part in packed] == ["int8"] * len(sizes)
    assert [part.out_features for part in packed] == sizes
    assert reader.reads == reads
    products = torch.cat([PLACEMENT.kernels.packed_linear(torch.ones(1, IN_FEATURES), part)[0] for part in packed])
    ones = torch.tensor([kinds[index] not in ("q4_0", "q4_1") for index in range(3)])
    expected = torch.cat([ones.repeat_interleave(torch.tensor([10, 20, 30])), torch.zeros(4, dtype=torch.bool)])
    torch.testing.assert_close(products, expected * float(IN_FEATURES))
