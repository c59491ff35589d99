"""Which implementation runs, and what its choice costs."""

import os
import subprocess
import sys

import pytest
import torch
from pyllm_kernels import BackendError, select
from pyllm_kernels.ops.activation import activation
from pyllm_kernels.ops.elementwise import add, add_bias, scale_and_cap
from pyllm_kernels.ops.norm import add_rms_norm, layer_norm, rms_norm
from pyllm_kernels.ops.packed_linear import pack_linear, packed_linear, packed_rows

# What a process without the interpreter and without a GPU sees.
BARE = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"CUDA_VISIBLE_DEVICES": ""}


def test_the_device_decides() -> None:
    assert select("auto", "cpu").backend == "cpu"
    assert select("auto", "cuda").backend == "triton"
    assert select("reference", "cuda:0").backend == "reference"


def test_a_backend_is_built_once(device: torch.device) -> None:
    assert select("triton", device) is select("triton", device)


def test_an_unknown_backend_is_refused_by_name() -> None:
    with pytest.raises(BackendError, match="unknown kernel backend 'cutlass': choose auto, cpu, reference or triton"):
        select("cutlass", "cpu")


def test_the_cpu_backend_is_for_cpus() -> None:
    with pytest.raises(BackendError, match="the cpu backend runs on cpu, not on cuda: use triton or the reference"):
        select("cpu", "cuda")


def test_the_public_functions_run_on_the_tensors_device(device: torch.device) -> None:
    x = torch.randn(2, 8, device=device)
    weight = torch.ones(8, device=device)
    kernels = select("auto", device)
    assert torch.equal(rms_norm(x, weight, 1e-6), kernels[rms_norm](x, weight, 1e-6))
    normed, total = add_rms_norm(x, x, weight, 1e-6)
    assert torch.equal(total, 2 * x)
    assert torch.equal(normed, kernels[rms_norm](2 * x, weight, 1e-6))
    assert torch.equal(activation(x, "gelu"), kernels[activation](x, "gelu"))
    assert torch.equal(activation(x, "silu", False), kernels[activation](x, "silu", False))
    assert torch.equal(layer_norm(x, weight, 1e-6), kernels[layer_norm](x, weight, 1e-6))
    assert torch.equal(add(x, x, 0.5), kernels[add](x, x, 0.5))
    assert torch.equal(add_bias(x.clone(), weight), kernels[add_bias](x.clone(), weight))
    assert torch.equal(scale_and_cap(x.clone(), 2.0, 3.0), kernels[scale_and_cap](x.clone(), 2.0, 3.0))
    packed = pack_linear(x)
    assert torch.equal(packed_linear(x, packed), kernels[packed_linear](x, kernels[pack_linear](x)))
    assert torch.equal(packed_rows(packed, torch.ones(1, dtype=torch.int32, device=device)), x[1:])


def test_triton_is_not_imported_until_it_is_selected() -> None:
    code = "import sys, pyllm_kernels; pyllm_kernels.select('auto', 'cpu'); assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=BARE)


def test_triton_on_a_cpu_without_the_interpreter_is_refused_with_the_way_out() -> None:
    code = "import pyllm_kernels; pyllm_kernels.select('triton', 'cpu')"
    process = subprocess.run([sys.executable, "-c", code], check=False, env=BARE, capture_output=True, text=True)
    assert process.returncode == 1
    assert "BackendError: the triton backend runs on cuda, not on cpu" in process.stderr
    assert "TRITON_INTERPRET=1" in process.stderr
