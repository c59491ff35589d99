"""The rules of the house that a reader relies on: who may import whom, and what an import may cost."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROLES = ("frontend", "core", "workers")
# Which part may import a library; everything else may not.
LIBRARY_HOMES = {
    "torch": ("pyllm/workers/", "kernels/pyllm_kernels/"),
    "triton": ("kernels/pyllm_kernels/",),
    "transformers": (),
    "pyllm_kernels": ("pyllm/workers/", "kernels/pyllm_kernels/"),
    "pyllm._rust": ("pyllm/core/",),
    "litestar": ("pyllm/frontend/",),
    "llguidance": ("pyllm/frontend/", "pyllm/workers/"),
    "uvicorn": ("pyllm/frontend/",),
}


def modules() -> list[Path]:
    found = sorted([*ROOT.glob("pyllm/**/*.py"), *ROOT.glob("kernels/pyllm_kernels/**/*.py")])
    assert len(found) > 40
    return found


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@pytest.mark.parametrize("role", ROLES)
def test_roles_do_not_import_one_another(role: str) -> None:
    others = [f"pyllm.{other}" for other in ROLES if other != role]
    found = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules()
        if path.is_relative_to(ROOT / "pyllm" / role)
        for name in imports(path)
        if any(within(name, other) for other in others)
    ]
    assert found == []


@pytest.mark.parametrize("library", LIBRARY_HOMES)
def test_library_is_imported_only_at_home(library: str) -> None:
    found = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules()
        if not str(path.relative_to(ROOT)).startswith(LIBRARY_HOMES[library])
        for name in imports(path)
        if within(name, library)
    ]
    assert found == []


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after `statement`."""
    code = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


@pytest.mark.parametrize(
    "statement",
    ["import pyllm", "from pyllm import EngineClient", "from pyllm import SamplingParams", "import pyllm.launch"],
)
def test_import_is_light(statement: str) -> None:
    heavy = {"torch", "transformers", "triton", "litestar", "uvicorn", "gguf", "llguidance", "pyllm_kernels"}
    assert loaded_by(statement) & heavy == set()


def test_api_process_loads_neither_torch_nor_transformers() -> None:
    loaded = loaded_by("import pyllm.frontend.app, pyllm.frontend.process")
    assert loaded & {"torch", "transformers", "llguidance"} == set()


def test_kernels_are_not_a_package_of_that_name() -> None:
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_versions_agree() -> None:
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    kernels = tomllib.loads((ROOT / "kernels" / "Cargo.toml").read_text())["package"]["version"]
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    source = (ROOT / "pyllm" / "__init__.py").read_text()
    assert kernels == {"workspace": True}
    assert f"pyllm-kernels=={workspace}" in dependencies
    assert f'__version__ = "{workspace}"' in source
