"""maturin, whose editable install of a checkout is of both packages: `pip install -e .` is enough.

Only the checkout has the pyllm-kernels that it needs, and a project's dependencies cannot name a folder beside it. So
the editable distribution has the folder of the kernels on its path, and their dependencies in place of the kernels.
"""

import base64
import contextlib
import csv
import hashlib
import io
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import maturin
from maturin import (
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

KERNELS = Path(__file__).resolve().parents[1] / "kernels"
PATH_FILE = "pyllm_kernels_checkout.pth"  # not the name that an editable install of the kernels alone has

Settings = Mapping[str, Any] | None


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Settings = None) -> str:
    """The metadata of `build_editable`, written into the folder; gives the name of its `.dist-info`."""
    name: str = maturin.prepare_metadata_for_build_editable(metadata_directory, config_settings)
    metadata = Path(metadata_directory, name, "METADATA")
    metadata.write_text(with_kernels(metadata.read_text()))
    return name


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """A wheel that has both folders on its path; both extensions are built into them. Gives its file name."""
    name: str = maturin.build_editable(wheel_directory, config_settings, metadata_directory)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(KERNELS):
        maturin.build_editable(folder, config_settings)  # for the extension that it leaves in its package
    add_kernels(Path(wheel_directory, name))
    return name


def with_kernels(metadata: str) -> str:
    """The same metadata with what the kernels require in place of the kernels."""
    project = tomllib.loads((KERNELS / "pyproject.toml").read_text())["project"]
    needed = [f"Requires-Dist: {requirement}" for requirement in project["dependencies"]]
    lines: list[str] = []
    for line in metadata.splitlines():
        is_kernels = line.startswith(f"Requires-Dist: {project['name']}")
        lines += [new for new in needed if new not in metadata] if is_kernels else [line]
    return "\n".join(lines) + "\n"


def add_kernels(wheel: Path) -> None:
    """Put the folder of the kernels on the path that an editable wheel installs."""
    with ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    (record,) = [name for name in files if name.endswith(".dist-info/RECORD")]
    metadata = record.removesuffix("RECORD") + "METADATA"
    files[metadata] = with_kernels(files[metadata].decode()).encode()
    files[PATH_FILE] = f"{KERNELS}\n".encode()
    del files[record]  # The last of the archive.
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        writer.writerow([name, f"sha256={digest}", len(content)])
    writer.writerow([record, "", ""])
    with ZipFile(wheel, "w", ZIP_DEFLATED) as archive:
        for name, content in {**files, record: rows.getvalue().encode()}.items():
            archive.writestr(name, content)
