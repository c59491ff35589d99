"""A wheel holds every file of its package: pages, lists, types. Built from what cargo compiled for this environment."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.wheel_files import PACKAGES, expected_files, files_in_wheel


@pytest.mark.full
@pytest.mark.parametrize("package", PACKAGES)
def test_a_wheel_holds_every_file_of_its_package(package: str, tmp_path: Path) -> None:
    """`make wheels` asks the same of the wheels that it builds with zig."""
    expected = expected_files(package)
    assert {f"{package}/__init__.py", f"{package}/py.typed"} < expected
    assert any(file.endswith(".pyi") for file in expected)
    # The call is an installer's, as in `make setup`, so that cargo finds everything compiled.
    command = [sys.executable, "-m", "maturin", "pep517", "build-wheel", "-i", sys.executable, "--compatibility", "off"]
    run = subprocess.run(
        [*command, "--out", tmp_path], cwd=PACKAGES[package][0], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert files_in_wheel(wheel) == expected
    with ZipFile(wheel) as archive:
        described = {Path(name).name for name in archive.namelist() if ".dist-info/" in name}
    assert {"METADATA", "LICENSE"} < described
    assert ("entry_points.txt" in described) == (package == "pyllm")
