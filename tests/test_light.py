"""A CPU engine needs neither torch nor Triton nor transformers: all of it works where none of them is installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_architecture import ROOT, modules, within

# The modules of GPUs and of `transformers`, which import torch when they are imported; all others work without.
IMPORT_TORCH = (
    "pyllm.workers.cuda_graphs",
    "pyllm.workers.devices.torch_device",
    "pyllm.workers.kv.gpu_blocks",
    "pyllm.workers.kv.swap_stream",
    "pyllm.workers.layers.nccl_ranks",
    "pyllm.workers.layers.one_shot_all_reduce",
    "pyllm.workers.sampling_graphs",
    "pyllm.workers.torch_recorder",
    "pyllm.workers.transformers_backend",
    "pyllm_kernels.gpu",
    "pyllm_kernels.launcher",
    "pyllm_kernels.torch_bridge",
)
NEED_RAY = ("pyllm.ray.application", "pyllm.ray.core_replica")
# Tests in which each entry point runs: the SDK, a core, an API process, the command line.
ENTRY_POINTS = (
    "tests/client/test_client.py",
    "tests/core/test_loop.py",
    "tests/frontend/test_api_process.py::test_it_serves_and_drains",
    "tests/commands/test_complete.py",
    "tests/commands/test_check.py::test_a_model_that_fits",
)
HIDING = """
import sys
from importlib.machinery import PathFinder

HIDDEN = {"torch", "triton", "transformers"}

class LightFinder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, *context):
        return (found for found in super().find_distributions(*context) if found.name not in HIDDEN)

sys.meta_path[sys.meta_path.index(PathFinder)] = LightFinder
"""


@pytest.fixture
def light(tmp_path: Path) -> dict[str, str]:
    """An environment in which Python finds none of the three, nor do its child processes."""
    (tmp_path / "sitecustomize.py").write_text(HIDING)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def run(light: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=light, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("package", ["torch", "triton", "transformers"])
def test_the_environment_hides_it(light: dict[str, str], package: str) -> None:
    run(light, "-c", f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{package}') is not None)")
    with pytest.raises(AssertionError, match=f"No module named '{package}'"):
        run(light, "-c", f"import {package}")
    with pytest.raises(AssertionError, match="PackageNotFoundError"):
        run(light, "-c", f"from importlib.metadata import version; version('{package}')")


def test_modules_are_imported_without_it(light: dict[str, str]) -> None:
    names = [name for name in modules() if not within(name, *IMPORT_TORCH, *NEED_RAY)]
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    run(light, "-c", code, *names)


def test_an_engine_answers_without_it(light: dict[str, str]) -> None:
    answer = run(
        light, "-m", "pyllm", "complete", "The capital of France is", "--max-tokens", "2", "--temperature", "0"
    )
    assert "Paris" in answer


def test_entry_points_run_without_it(light: dict[str, str]) -> None:
    run(light, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *ENTRY_POINTS)
