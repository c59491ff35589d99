"""Every kernel test runs the reference and Triton: compiled for CUDA where there is a device, else interpreted.

The interpreter is slow: of its cases `make test` has each shape, format and dtype, but not all of them together.
"""

from pathlib import Path

import pytest
import torch
from pyllm_kernels import Kernels, batch_invariant, select
from pyllm_kernels.torch_bridge import on_host

from tests.kernels.recurrent_ops import of_arrays
from tests.tiers import leave_products_to_full
from tests.triton_interpreter import interpret
from tests.wrapped_kernels import WrappedKernels

interpret()

# Where there is a card, kernels are compiled for it.
collect_ignore = ["test_interpreter.py"] if torch.cuda.is_available() else []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        leave_products_to_full(item for item in items if _is_interpreted(item))


def _is_interpreted(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or not item.path.is_relative_to(Path(__file__).parent):
        return False
    if not hasattr(item, "callspec") or item.get_closest_marker("gpu") or item.get_closest_marker("full"):
        return False
    return any("triton" in name for name in item.fixturenames) or "triton" in (
        item.callspec.params.get(name) for name in ("kernels", "kernels_with_fp8", "backend")
    )


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["reference", "triton"] if torch.cuda.is_available() else ["reference", "cpu", "triton"])
def kernels(request: pytest.FixtureRequest, device: torch.device) -> Kernels:
    kernels = select(request.param, device)
    # Tests make tensors; the engine gives Rust arrays.
    return WrappedKernels(kernels, lambda _, version: on_host(version)) if request.param == "cpu" else kernels


@pytest.fixture
def arrays_in_triton(device: torch.device) -> Kernels:
    """Triton's kernels, for arrays."""
    return of_arrays(select("triton", device), device)


@pytest.fixture
def invariant_arrays_in_triton(device: torch.device) -> Kernels:
    """The kernels of `batch_invariant`."""
    return of_arrays(batch_invariant(select("triton", device)), device)


@pytest.fixture(params=["reference", "triton"])
def kernels_with_fp8(request: pytest.FixtureRequest, device: torch.device) -> Kernels:
    """The backends that take caches in fp8."""
    return select(request.param, device)
