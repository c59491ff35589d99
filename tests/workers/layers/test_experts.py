"""A layer of experts on Triton, packed from files: beside the reference of the same numbers, in each kept format."""

from pathlib import Path

import pytest
import torch
from pyllm_kernels import select
from torch import Tensor

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.workers.layers.experts import Experts
from pyllm.workers.layers.placement import Placement
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.loaders.formats import weight_reader
from pyllm.workers.loaders.tensor_table import TensorTable
from tests.families.record_gguf import FOLDER
from tests.families.tiny_families import write_tiny_family
from tests.tiny_quantised import VARIANTS, write_quantised

CPU = torch.device("cpu")


def experts_of(model: str, backend: str, quantization: str) -> Experts:
    """The experts of the first layer."""
    checkpoint = read_checkpoint(model)
    spec = checkpoint.spec
    feed_forward = spec.layers[0].feed_forward
    assert feed_forward.routing is not None
    placement = Placement(RankGroup(), torch.float32, CPU, select(backend, CPU), quantization)
    experts = Experts(feed_forward, feed_forward.routing, spec.hidden_size, placement)
    experts.load(weight_reader(checkpoint, TensorTable(checkpoint)), "layers.0.feed_forward.")
    return experts


def check(experts: Experts, expected: Experts, tolerance: float) -> None:
    x = torch.randn(37, 32, generator=torch.Generator().manual_seed(0))
    ours, theirs = outputs(experts, x), outputs(expected, x)
    assert (ours - theirs).norm() <= tolerance * theirs.norm()


@torch.inference_mode()
def outputs(experts: Experts, x: Tensor) -> Tensor:
    return experts(x)


@pytest.mark.parametrize("family", ["qwen3-moe", "granite-moe", "mixtral-whole"])
def test_floats(tmp_path: Path, family: str) -> None:
    folder = write_tiny_family(tmp_path, family)
    check(experts_of(folder, "triton", "none"), experts_of(folder, "reference", "none"), 1e-5)
    file = str(FOLDER / f"{family}.gguf")
    check(experts_of(file, "triton", "gguf"), experts_of(file, "reference", "none"), 1e-5)


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        ("packed", 1e-5),
        ("packed asymmetric", 2e-3),
        ("int8", 2e-2),
        ("fp8 of compressed-tensors", 1e-5),
        ("fp8 of compressed-tensors' blocks", 1e-5),
    ],
)
def test_quantised(tmp_path: Path, name: str, tolerance: float) -> None:
    variant, kind = VARIANTS[name]
    source = write_tiny_family(tmp_path / "tiny", "qwen3-moe")
    folder = write_quantised(source, tmp_path / "quantised", variant, tmp_path / "floats")
    experts = experts_of(folder, "triton", variant.config["quant_method"])
    matrices = experts.matrices
    assert [matrix.format for matrix in (matrices.gate, matrices.up, matrices.down)] == [kind] * 3
    assert all(matrix.factors for matrix in (matrices.gate, matrices.up, matrices.down))
    check(experts, experts_of(str(tmp_path / "floats"), "reference", "none"), tolerance)


@pytest.mark.parametrize("family", ["qwen3-moe", "granite-moe", "mixtral-whole", "olmoe"])
def test_a_gpu_reads_the_numbers_that_a_cpu_packs(tmp_path: Path, family: str) -> None:
    """Floats are read into a GPU's memory, where a CPU packs the rows of the file: each expert's, and parts of them."""
    for model in (write_tiny_family(tmp_path, family), str(FOLDER / f"{family}.gguf")):
        checkpoint = read_checkpoint(model)
        reader = weight_reader(checkpoint, TensorTable(checkpoint))
        entries = [entry for entry in checkpoint.tensors if ".experts." in entry.name]
        assert entries
        for entry in entries:
            outputs, features = entry.shape
            for rows, columns in ((slice(0, outputs), slice(0, features)), (slice(8, 24), slice(0, 32))):
                out = torch.full((rows.stop - rows.start, columns.stop - columns.start), torch.nan)
                reader.read(entry.name, entry.shape, out, rows, columns)
                assert torch.equal(out, reader.rows(entry.name, (outputs, features), rows, columns).numbers())
