"""An op is easy to add: few files name it, and a backend without it refuses it by name."""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pyllm_kernels
import pyllm_kernels.ops
import pytest
from pyllm_kernels import BackendError, Kernels
from pyllm_kernels.op import Op, op

PACKAGE = Path(pyllm_kernels.__file__).parent
RUST = Path(__file__).parents[2] / "kernels" / "src"
MOST_FILES = 4  # of an op: its own, Triton's, Rust's, and the list of Rust's module


def ops() -> Iterator[Op[..., object]]:
    """Every op, once."""
    for module in pkgutil.iter_modules(pyllm_kernels.ops.__path__):
        members = vars(importlib.import_module(f"pyllm_kernels.ops.{module.name}"))
        yield from (member for member in members.values() if isinstance(member, Op) and is_from(member, module.name))


def is_from(found: Op[..., object], module: str) -> bool:
    return found.cpu.__module__ == f"pyllm_kernels.ops.{module}"


def declares(path: Path, name: str) -> bool:
    """Whether a file has a function of this name, or lists it among Rust's functions for Python."""
    text = path.read_text()
    if path.suffix == ".py":
        return any(isinstance(node, ast.FunctionDef) and node.name == name for node in ast.parse(text).body)
    if path.name == "lib.rs":
        return re.search(rf"use super::[^;]*\b{name}\b[^;]*;", text) is not None
    return re.search(rf"#\[pyfunction\](?:\n#\[[^\n]*)*\n[^\n]*\bfn {name}\b", text) is not None


@pytest.mark.parametrize("name", sorted(each.name for each in ops()))
def test_an_op_touches_few_files(name: str) -> None:
    files = [*PACKAGE.rglob("*.py"), *RUST.rglob("*.rs")]
    touched = [path.name for path in files if declares(path, name)]
    assert 0 < len(touched) <= MOST_FILES, touched


def test_a_backend_without_an_op_refuses_it_by_name() -> None:
    @op(reference=abs)
    def absolute(number: float) -> float:
        return abs(number)

    assert Kernels("cpu")[absolute](-2.0) == Kernels("reference")[absolute](-2.0) == 2
    with pytest.raises(BackendError, match="absolute has no version in Triton: use the cpu backend or the reference"):
        Kernels("triton")[absolute]
