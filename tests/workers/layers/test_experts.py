"""A layer of experts on Triton, packed from files: beside the reference of the same numbers, in each kept format."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from pyllm_kernels import select
from torch import Tensor

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.workers.devices.torch_device import TorchDevice
from pyllm.workers.layers.experts import Experts
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.formats import weight_reader
from pyllm.workers.loaders.tensor_table import TensorTable
from tests.families.record_gguf import FOLDER
from tests.families.tiny_families import write_tiny_family
from tests.tiny_gguf import write_gpt_oss_gguf
from tests.tiny_mxfp4 import write_mxfp4
from tests.tiny_quantised import VARIANTS, write_quantised

CPU = TorchDevice(torch.device("cpu"))


def experts_of(model: str, backend: str, quantization: str) -> Experts:
    """The experts of the first layer."""
    checkpoint = read_checkpoint(model)
    spec = checkpoint.spec
    feed_forward = spec.layers[0].feed_forward
    assert feed_forward.routing is not None
    placement = WeightPlacement(RankGroup(), "float32", CPU, select(backend, CPU.type), quantization)
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


def test_biases_and_a_clamped_gate(tmp_path: Path) -> None:
    folder = write_tiny_family(tmp_path, "gpt-oss-clamped")
    check(experts_of(folder, "triton", "none"), experts_of(folder, "reference", "none"), 1e-5)


def test_mxfp4_becomes_floats_of_the_exact_numbers(tmp_path: Path) -> None:
    source, floats = write_tiny_family(tmp_path / "tiny", "gpt-oss"), tmp_path / "floats"
    folder = write_mxfp4(source, tmp_path / "quantised", floats)
    file = write_gpt_oss_gguf(str(floats), tmp_path / "tiny.gguf", gguf.GGMLQuantizationType.MXFP4)
    expected = experts_of(str(floats), "reference", "none").matrices
    for model, quantization in ((folder, "mxfp4"), (folder, "none"), (file, "gguf"), (file, "none")):
        experts = experts_of(model, "triton", quantization).matrices
        for name in ("gate", "up", "down"):
            packed = getattr(experts, name)
            assert (packed.format, packed.factors) == ("float32", ())
            assert torch.equal(packed.data, getattr(expected, name).data)


@pytest.mark.parametrize("family", ["qwen3-moe", "granite-moe", "mixtral-whole", "olmoe", "gpt-oss"])
def test_a_gpu_reads_the_numbers_that_a_cpu_packs(tmp_path: Path, family: str) -> None:
    """Floats are read into a GPU's memory, where a CPU packs the rows of the file: each expert's, and parts of them."""
    folder = write_tiny_family(tmp_path / "tiny", family)
    models = [folder, str(FOLDER / f"{family}.gguf")]
    if family == "gpt-oss":
        kinds = gguf.GGMLQuantizationType
        models[1:] = [write_gpt_oss_gguf(folder, tmp_path / f"{kind}.gguf", kind) for kind in (kinds.F32, kinds.MXFP4)]
        models.append(write_mxfp4(folder, tmp_path / "quantised", tmp_path / "floats"))
    for model in models:
        checkpoint = read_checkpoint(model)
        reader = weight_reader(checkpoint, TensorTable(checkpoint))
        entries = [
            entry for entry in checkpoint.tensors if ".experts." in entry.name and entry.name.endswith(".weight")
        ]
        assert entries
        for entry in entries:
            outputs, features = entry.shape
            for rows, columns in ((slice(0, outputs), slice(0, features)), (slice(8, 24), slice(0, 32))):
                out = torch.full((rows.stop - rows.start, columns.stop - columns.start), torch.nan)
                reader.read(entry.name, entry.shape, out, rows, columns)
                packed = reader.rows(entry.name, (outputs, features), rows, columns).numbers()
                np.testing.assert_array_equal(out.numpy(), packed)
