"""The documents say what is there: files exist, flags exist, and the architecture stays short."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# What a path in ARCHITECTURE.md may be relative to, as its first lines say.
BASES = (ROOT, ROOT / "pyllm", ROOT / "rust/pyllm-scheduler/src", ROOT / "kernels/pyllm_kernels")
PATH = re.compile(r"`([\w./-]+(?:/|\.(?:py|pyi|rs|md|toml)))`")
FLAG = re.compile(r"--[a-z][a-z-]+")


def architecture() -> str:
    return (ROOT / "ARCHITECTURE.md").read_text()


def test_paths_in_the_architecture_exist() -> None:
    paths = PATH.findall(architecture())
    assert len(paths) > 80
    assert [path for path in paths if not any((base / path).exists() for base in BASES)] == []


def test_every_module_is_in_the_code_map() -> None:
    code_map = architecture().partition("## Code map")[2].partition("## Invariants")[0]
    named = {base / path for path in PATH.findall(code_map) for base in BASES}
    sources = [path for base in BASES[1:] for path in base.rglob("*") if path.suffix in {".py", ".rs"}]
    assert len(sources) > 100
    left_out = [
        str(path.relative_to(ROOT))
        for path in sources
        if path.name not in {"__init__.py", "lib.rs"} and not named & {path, *path.parents}
    ]
    assert left_out == []


@pytest.mark.parametrize(("document", "most"), [("ARCHITECTURE.md", 200), ("CONTRIBUTING.md", 80)])
def test_documents_are_short(document: str, most: int) -> None:
    assert 0 < len((ROOT / document).read_text().splitlines()) <= most


def test_flags_in_the_readme_exist() -> None:
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| `--")]
    flags = {flag for row in rows for flag in FLAG.findall(row)}
    assert len(flags) > 10
    command = [sys.executable, "-m", "pyllm", "serve", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert flags - set(FLAG.findall(text)) == set()


def test_documents_link_to_files_that_exist() -> None:
    for document in ROOT.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            assert (ROOT / target).exists(), f"{document.name} links to {target}"
