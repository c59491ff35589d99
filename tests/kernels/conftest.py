"""Every kernel test runs the reference and Triton: compiled for CUDA where there is a device, else interpreted."""

import pytest
import torch
from pyllm_kernels import Kernels, select

from tests.triton_interpreter import interpret

interpret()


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["reference", "triton"] if torch.cuda.is_available() else ["reference", "cpu", "triton"])
def kernels(request: pytest.FixtureRequest, device: torch.device) -> Kernels:
    return select(request.param, device)
