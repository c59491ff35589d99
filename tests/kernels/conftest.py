"""Every kernel test runs the reference and Triton: compiled for CUDA where there is a device, else interpreted."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when a kernel's module is first imported.

from pyllm_kernels import Kernels, select


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["reference", "triton"] if torch.cuda.is_available() else ["reference", "cpu", "triton"])
def kernels(request: pytest.FixtureRequest, device: torch.device) -> Kernels:
    return select(request.param, device)
