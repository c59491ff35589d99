"""The files of a package: in its folder, and in a wheel. Knows nothing of how the wheel was built."""

from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
# Each package with the folder that holds it, and the extension that Rust becomes there.
PACKAGES = {"pyllm": (ROOT, "pyllm/_rust.abi3.so"), "pyllm_kernels": (ROOT / "kernels", "pyllm_kernels/_cpu.abi3.so")}


def expected_files(package: str) -> set[str]:
    """What a wheel of this package must hold besides its `.dist-info`: every file of the folder, and the extension."""
    base, extension = PACKAGES[package]
    files = [path.relative_to(base) for path in (base / package).rglob("*") if path.is_file()]
    sources = {str(path) for path in files if "__pycache__" not in path.parts and path.suffix != ".so"}
    return {*sources, extension}


def files_in_wheel(wheel: Path) -> set[str]:
    """The wheel's files without those of its `.dist-info`."""
    with ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}
