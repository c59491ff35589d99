"""The rules of the house that a reader relies on: who may import whom, what an import costs, what a folder holds."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROLES = ("pyllm.frontend", "pyllm.core", "pyllm.workers")
# What an orchestrator embeds: no text, no web framework, no role.
SDK = ("pyllm.client", "pyllm.wire")
# Which part may import a library; everything else may not.
LIBRARY_HOMES = {
    "torch": ("pyllm.workers", "pyllm_kernels"),
    "triton": ("pyllm_kernels",),
    "transformers": ("pyllm.workers.transformers_backend",),
    "pyllm_kernels": ("pyllm.workers", "pyllm_kernels"),
    # Of it the client has what has no requests; stores and host memory have the checksum of KV blocks.
    "pyllm._rust": ("pyllm.core", "pyllm.client", "pyllm.kv_transfer.stores", "pyllm.workers.kv"),
    "ray": ("pyllm.core.executors", "pyllm.ray"),
    "llguidance": ("pyllm.frontend", "pyllm.workers"),
    "tokenizers": ("pyllm.frontend", "pyllm.checkpoint"),
    "uvicorn": ("pyllm.frontend",),
}
MAX_MODULES = 20  # in one folder
LISTS = {"pyllm.families", "pyllm_kernels.ops"}  # a file for each of many things of one kind
RUST = [*ROOT.glob("rust/*/src"), ROOT / "kernels/src"]
# Names of modules that stand for the same thing in each of their packages.
REPEATED = {
    "answer_format": "an API's answers",
    "chat_conversation": "the body of an API as a conversation",
    "error_format": "an API's errors",
    "gguf": "a GGUF file: what it says, and its weights",
    "logprobs": "log-probabilities, from the sampler to an API",
    "messages": "the messages of a connection",
    "replay": "a command, and what it does",
    "protocol": "the structs of an API's bodies",
    "routes": "the routes of an API",
    "serve": "a command, and what it does",
}


@cache
def modules() -> Mapping[str, Path]:
    """Path of each module and package, by its name."""
    paths = [*ROOT.glob("pyllm/**/*.py"), *(ROOT / "kernels").glob("pyllm_kernels/**/*.py")]
    found = {}
    for path in sorted(paths):
        base = ROOT / "kernels" if path.is_relative_to(ROOT / "kernels") else ROOT
        found[".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")] = path
    assert len(found) > 200
    return found


@cache
def packages() -> Collection[str]:
    return [name for name, path in modules().items() if path.name == "__init__.py"]


def package_of(module: str) -> str:
    return module if module in packages() else module.rpartition(".")[0]


def imports(path: Path) -> Iterator[str]:
    """Everything that a file imports, wherever in it, as dotted names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(name: str) -> str:
    """The module that an imported name comes from; empty where it is none of ours."""
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name


@cache
def graph() -> Mapping[str, set[str]]:
    """The modules that each module imports."""
    return {
        module: {module_of(name) for name in imports(path)} - {module, "", "pyllm"}
        for module, path in modules().items()
        if path.name != "__init__.py"
    }


def within(name: str, *parts: str) -> bool:
    return any(name == part or name.startswith(part + ".") for part in parts)


def test_roles_do_not_import_one_another() -> None:
    assert [
        f"{module} imports {other}"
        for module, others in graph().items()
        for other in others
        if within(module, *ROLES) and within(other, *ROLES) and module.split(".")[1] != other.split(".")[1]
    ] == []


def test_the_sdk_imports_no_role() -> None:
    assert [
        f"{module} imports {other}"
        for module, others in graph().items()
        for other in others
        if within(module, *SDK) and within(other, *ROLES, "pyllm.launch", "pyllm.checkpoint")
    ] == []


@pytest.mark.parametrize("library", LIBRARY_HOMES)
def test_library_is_imported_only_at_home(library: str) -> None:
    assert [
        f"{module} imports {name}"
        for module, path in modules().items()
        if not within(module, *LIBRARY_HOMES[library])
        for name in imports(path)
        if within(name, library)
    ] == []


def test_files_import_in_no_circle() -> None:
    assert_no_circle(graph())


def test_packages_import_in_no_circle() -> None:
    """A package's own modules compose its subpackages, which never import them. Those at the top count alone."""

    def room(module: str) -> str:
        package = package_of(module)
        return module if package in {"pyllm", "pyllm_kernels"} else package

    between: dict[str, set[str]] = {}
    for module, others in graph().items():
        between.setdefault(room(module), set()).update(map(room, others))
    assert_no_circle({package: others - {package} for package, others in between.items()})


@pytest.mark.parametrize("crate", ["rust/pyllm-scheduler", "rust/pyllm-python", "kernels"])
def test_rust_modules_import_in_no_circle(crate: str) -> None:
    """The top modules of a crate, each with its children. `lib.rs` composes them."""
    source = ROOT / crate / "src"
    edges: dict[str, set[str]] = {}
    for path in source.rglob("*.rs"):
        module = path.relative_to(source).parts[0].removesuffix(".rs")
        text = re.sub(r"//.*", "", path.read_text()).partition("#[cfg(test)]\nmod tests {")[0]
        if module != "lib" and path.stem != "tests":
            edges.setdefault(module, set()).update(_crate_modules(text) - {module})
    assert len(edges) > 3
    assert_no_circle({module: others & set(edges) for module, others in edges.items()})


def test_the_parts_of_a_rust_module_import_in_no_circle() -> None:
    """The files of one folder, by their names behind `super::`."""
    paths = [*ROOT.glob("rust/*/src/*/**/*.rs"), *ROOT.glob("kernels/src/*/**/*.rs")]
    folders: dict[Path, dict[str, set[str]]] = {}
    for path in paths:
        text = re.sub(r"//.*", "", path.read_text())
        folders.setdefault(path.parent, {})[path.stem] = set(re.findall(r"\bsuper::(\w+)", text)) - {path.stem}
    assert len(folders) > 10
    for edges in folders.values():
        assert_no_circle({module: others & set(edges) for module, others in edges.items()})


def _crate_modules(text: str) -> set[str]:
    """The first names behind `crate::`, also those of braces."""
    braces = re.findall(r"\bcrate::\{(.*?)\};", text, re.DOTALL)
    return set(re.findall(r"\bcrate::(\w+)", text)) | {
        name for group in braces for name in re.findall(r"(\w+)::", group)
    }


def assert_no_circle(edges: Mapping[str, set[str]]) -> None:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


def test_a_folder_shows_few_modules() -> None:
    sizes = Counter(module.rpartition(".")[0] for module in graph())
    sizes.update(str(path.parent) for source in RUST for path in source.rglob("*.rs") if path.name != "lib.rs")
    assert {folder: size for folder, size in sizes.items() if size > MAX_MODULES and folder not in LISTS} == {}


def test_a_module_name_stands_for_one_thing() -> None:
    stems = Counter(module.rpartition(".")[2] for module in graph() if within(module, "pyllm"))
    assert {stem for stem, count in stems.items() if count > 1} == set(REPEATED)


@pytest.mark.parametrize("package", [name for name in packages() if name != "pyllm_kernels"])
def test_a_package_says_what_it_owns_and_imports_nothing(package: str) -> None:
    tree = ast.parse(modules()[package].read_text())
    owns, _, knows_not = (ast.get_docstring(tree) or "").partition("\n\n")
    assert owns
    assert knows_not
    assert set(imports(modules()[package])) <= {"lazy_loader"}


@cache
def exports(package: str) -> set[str]:
    stub = modules()[package].with_suffix(".pyi")
    if not stub.exists():
        return set()
    tree = ast.parse(stub.read_text())
    return {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}


def test_no_exported_name_is_a_modules_too() -> None:
    """Importing such a module would replace the name."""
    names = [f"{package}.{name}" for package in packages() if package != "pyllm_kernels" for name in exports(package)]
    assert set(names) & set(modules()) == set()


def test_only_packages_that_programs_import_list_their_names() -> None:
    assert {name for name in packages() if exports(name)} == {"pyllm", "pyllm.client", "pyllm.kv_transfer", "pyllm.ray"}


def test_exported_names_exist() -> None:
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    package = importlib.import_module(name)\n"
    code += "    [getattr(package, export) for export in package.__all__]"
    names = [package for package in packages() if exports(package)]
    subprocess.run([sys.executable, "-c", code, *names], check=True)


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after `statement`."""
    code = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        f"import {', '.join(name for name in packages() if not within(name, 'pyllm_kernels'))}",
        "from pyllm import EngineClient",
        "from pyllm import SamplingParams",
        "import pyllm.launch.serve",
    ],
)
def test_import_is_light(statement: str) -> None:
    heavy = {"torch", "transformers", "triton", "uvicorn", "gguf", "llguidance", "pyllm_kernels"}
    assert loaded_by(statement) & heavy == set()


def test_api_process_loads_neither_torch_nor_transformers() -> None:
    loaded = loaded_by("import pyllm.frontend.app, pyllm.frontend.api_process")
    assert loaded & {"torch", "transformers", "llguidance"} == set()


def test_api_process_loads_no_library_of_models() -> None:
    assert {"pydantic", "attr"} <= loaded_by("import pydantic, attr")
    assert loaded_by("import pyllm.frontend.app") & {"pydantic", "attr"} == set()


def test_supervisor_loads_no_sockets_library() -> None:
    assert loaded_by("import pyllm.cli, pyllm.commands.serve, pyllm.launch.serve") & {"zmq", "tokenizers"} == set()


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
