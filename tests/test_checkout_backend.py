"""The editable install of a checkout has the kernels in it, and its record is of what it holds."""

import base64
import csv
import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

from build_backend.checkout_backend import KERNELS, PATH_FILE, add_kernels, with_kernels
from tests.wheel_files import ROOT, expected_files

METADATA = """Metadata-Version: 2.4
Name: pyllm
Requires-Dist: pyllm-kernels==0.1.0
Requires-Dist: numpy>=2
Requires-Dist: torch>=2.11

The text.
"""


def test_what_the_kernels_require_stands_in_their_place() -> None:
    lines = with_kernels(METADATA).splitlines()
    needed = [line for line in lines if line.startswith("Requires-Dist: ")]
    assert [line.split(": ")[1].split(">")[0] for line in needed] == ["ml_dtypes", "numpy", "torch"]
    assert [line for line in lines if line not in needed] == [
        line for line in METADATA.splitlines() if not line.startswith("Requires-Dist: ")
    ]
    assert with_kernels(with_kernels(METADATA)) == with_kernels(METADATA)


def test_the_wheel_has_the_folder_of_the_kernels_on_its_path_and_a_record_of_its_files(tmp_path: Path) -> None:
    wheel = tmp_path / "pyllm-0.1.0-cp311-abi3-linux_x86_64.whl"
    with ZipFile(wheel, "w") as archive:
        archive.writestr("pyllm.pth", f"{ROOT}\n")
        archive.writestr("pyllm-0.1.0.dist-info/METADATA", METADATA)
        archive.writestr("pyllm-0.1.0.dist-info/RECORD", "outdated,,\n")
    add_kernels(wheel)
    with ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    assert files[PATH_FILE].decode().splitlines() == [str(KERNELS)]
    assert (KERNELS / "pyllm_kernels/__init__.py").is_file()
    assert files["pyllm-0.1.0.dist-info/METADATA"].decode() == with_kernels(METADATA)
    recorded = list(csv.reader(files["pyllm-0.1.0.dist-info/RECORD"].decode().splitlines()))
    assert {name for name, _, _ in recorded} == files.keys()
    for name, digest, size in recorded[:-1]:
        encoded = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).decode().rstrip("=")
        assert (digest, size) == (f"sha256={encoded}", str(len(files[name])))
    assert recorded[-1] == ["pyllm-0.1.0.dist-info/RECORD", "", ""]


def test_a_source_distribution_has_what_builds_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "maturin", "pep517", "write-sdist", "--sdist-directory", tmp_path]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    (path,) = tmp_path.glob("pyllm-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {file for file in expected_files("pyllm") if not file.endswith(".so")}
    assert {"pyproject.toml", "build_backend/checkout_backend.py", "Cargo.lock", *sources} < names
