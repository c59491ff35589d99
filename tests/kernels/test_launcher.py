"""A launch gives the card what Triton's own would: the same version, grid and arguments."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from pyllm_kernels.launcher import Launcher

ROOT = Path(__file__).parent.parent.parent


def test_launches_are_those_of_triton(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    process = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.kernels.compare_launches"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
    )
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert report["by_launcher"] == report["plainly"]
    # Two of the twelve cases have other numbers of the same kind, and the number of tokens is not looked at.
    assert len({version for version, _, _ in report["plainly"]}) == 9


class Misordered:
    """A kernel with a constant before a number."""

    @staticmethod
    def fn(tensor: object, SIZE: int, number: int) -> NoReturn:  # noqa: N803  # Constants of kernels are upper case.
        raise AssertionError("it is not launched")


def test_constants_come_last() -> None:
    with pytest.raises(ValueError, match=r"takes \['tensor', 'SIZE', 'number'\]"):
        Launcher(Misordered(), {"SIZE": 1, "num_warps": 4})
