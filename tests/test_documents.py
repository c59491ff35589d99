"""The documents say what is there: files, flags and links exist, examples compile, and documents stay short."""

import ast
import inspect
import math
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pyllm import EngineClient
from pyllm.cli import COMMANDS
from tests.frontend.chat.conversations import ADJUSTMENTS

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md")])
# What a path in ARCHITECTURE.md may be relative to, as its first lines say; Rust's are named within their step.
BASES = (ROOT, ROOT / "pyllm", ROOT / "rust/pyllm-scheduler/src")
PATH = re.compile(r"`([\w./-]+(?:/[\w-]+|/|\.(?:py|pyi|rs|md|toml)))`")
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]+))?\)")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
UNTYPED = """
[[tool.mypy.overrides]]
module = {}
ignore_missing_imports = true
disallow_untyped_defs = false
disallow_incomplete_defs = false
disallow_untyped_calls = false
disallow_any_generics = false
warn_return_any = false
"""
# Flags of commands that take no settings.
OTHERS = {"--help", "--print-completion", "--role"}


def test_documents_are_found() -> None:
    assert len(DOCUMENTS) > 15


@pytest.mark.parametrize(("document", "most"), [("README.md", 150), ("ARCHITECTURE.md", 180), ("CONTRIBUTING.md", 80)])
def test_documents_of_the_root_are_short(document: str, most: int) -> None:
    assert 0 < len((ROOT / document).read_text().splitlines()) <= most


def test_paths_in_the_architecture_exist() -> None:
    paths = PATH.findall((ROOT / "ARCHITECTURE.md").read_text())
    assert len(paths) > 40
    assert [path for path in paths if not any((base / path).exists() for base in BASES)] == []


def test_every_package_is_in_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = [path.parent.relative_to(ROOT / "pyllm") for path in ROOT.glob("pyllm/*/**/__init__.py")]
    assert len(packages) > 20
    assert [str(path) for path in packages if f"`{path}`" not in text] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target, anchor in LINK.findall(document.read_text()):
        linked = (document.parent / target).resolve() if target else document
        assert linked.exists(), f"{document.name} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{document.name} links to {target}#{anchor}"


def anchors(document: Path) -> set[str]:
    """Of its headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_in_documents_compiles(document: Path) -> None:
    for block in blocks(document):
        compile(block, document.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.full
def test_programs_in_documents_have_the_types_that_they_need(tmp_path: Path) -> None:
    programs = [ROOT / "examples" / path.name for path in sorted((ROOT / "examples").glob("*.py"))]
    for document in (ROOT / "README.md", *ROOT.glob("docs/*.md")):
        for block in blocks(document):
            if "import " in block:  # The others are parts of a program.
                path = tmp_path / f"block_{len(programs)}.py"
                path.write_text(block if is_module(block) else f"async def main():\n{textwrap.indent(block, '    ')}")
                programs.append(path)
    assert len(programs) > 12
    # The settings of `make types`, whose cache then has all of pyllm; but a program need not declare its types.
    settings = tmp_path / "pyproject.toml"
    settings.write_text((ROOT / "pyproject.toml").read_text() + UNTYPED.format([path.stem for path in programs]))
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", settings, "--scripts-are-modules", *programs],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"MYPYPATH": "."},
    )
    assert run.returncode == 0, run.stdout


def blocks(document: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)


def is_module(block: str) -> bool:
    try:
        compile(block, "block", "exec")
    except SyntaxError:  # It awaits outside of a function.
        return False
    return True


@pytest.mark.parametrize(("script", "page"), [("flags.py", "flags.md"), ("vllm_flags.py", "vllm-flags.md")])
def test_the_pages_of_flags_are_current(script: str, page: str) -> None:
    command = [sys.executable, str(ROOT / "docs" / script)]
    text = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert (ROOT / "docs" / page).read_text() == text, "write it anew: make docs"


@pytest.mark.parametrize(
    "document", ["README.md", *(f"docs/{name}.md" for name in ("serving", "http-api", "limits", "tools", "sdk"))]
)
def test_flags_in_documents_exist(document: str) -> None:
    pages = [(ROOT / "docs" / name).read_text() for name in ("flags.md", "vllm-flags.md")]
    known = set(FLAG.findall("\n".join(pages))) | OTHERS
    assert set(FLAG.findall((ROOT / document).read_text())) - known == set()


def test_the_calls_of_the_sdk_take_what_its_page_says() -> None:
    rows = re.findall(r"^\| (`\w+\(.*?) \|", (ROOT / "docs/sdk.md").read_text(), re.MULTILINE)
    calls = [call for row in rows for call in re.findall(r"`(\w+)\((.*?)\)`", row)]
    assert len(calls) > 10
    for name, arguments in calls:
        known = inspect.signature(getattr(EngineClient, name)).parameters
        names = [argument.strip(" =") for argument in arguments.split(",") if argument.strip(" .")]
        assert [argument for argument in names if argument not in known] == [], name


def test_the_figures_of_the_readme_are_those_of_the_page() -> None:
    page = (ROOT / "docs/performance.md").read_text().partition("### With AVX2")[2].partition("\n\n|")[2]
    rates = [
        [int(rate) for rate in re.findall(r"(\d+); [\d,]+", row)] for row in page.partition("\n\n")[0].splitlines()
    ]
    ours, no_drafts, *theirs = rates[2:]
    table = (ROOT / "README.md").read_text().partition("AVX2 alone")[2].partition("\n\n")[0].splitlines()[2:]
    shown = [[int(rate) for rate in re.findall(r"\| (\d+)", row)] for row in table]
    assert shown == [ours, no_drafts, theirs[-1], [max(column) for column in zip(*theirs, strict=True)]]


def test_what_people_from_other_engines_are_told_to_use_exists() -> None:
    text = (ROOT / "docs/coming-from.md").read_text()
    pages = "\n".join((ROOT / "docs" / name).read_text() for name in ("flags.md", "vllm-flags.md", "chat.md"))
    rows = [row.split("|")[2] for row in text.splitlines() if row.startswith("| ") and row.count("|") == 3]
    assert len(rows) > 50
    assert set(FLAG.findall("\n".join(rows))) - set(FLAG.findall(pages)) - {"--grammar", "--system-prompt"} == set()
    commands = {name for row in rows for name in re.findall(r"`pyllm (\w+)", row)}
    assert commands - set(COMMANDS) == set()


def test_the_sizes_of_models_are_computed_as_the_page_says() -> None:
    text = (ROOT / "docs/coming-from.md").read_text().partition("## Models that fit")[2]
    rows = [[cell.strip() for cell in row.split("|")[2:-1]] for row in text.splitlines() if row.startswith("| `")]
    assert len(rows) > 12
    for parameters, shape, *cells in rows:
        cache = 2 * math.prod(map(int, re.findall(r"\d+", shape))) * 2 * 8192 / 1e9
        for bits, cell in zip((5, 8.5, 16), cells, strict=True):
            needed, memory = cell.split(": ")
            size = float(parameters) * bits / 8 + cache + 1
            assert abs(float(needed) - size) < 0.06, cell
            fits = next((total for total, left in ((8, 2), (16, 3), (32, 4)) if size <= total - left), "more")
            assert memory == str(fits), cell


def test_every_adjustment_of_messages_is_explained() -> None:
    names = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/conversations.md").read_text(), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(names))) == sorted(ADJUSTMENTS)


def test_the_wheels_of_a_card_are_listed() -> None:
    pinned = (ROOT / "constraints.txt").read_text()
    wheels = dict(re.findall(r"^((?:nvidia|cuda)-[\w-]+|torch|triton)==(\S+)$", pinned, re.MULTILINE))
    assert len(wheels) > 15
    rows = re.findall(r"^\| `([\w-]+)` \| (\S+) \| [\d.]+ [Mk]B \|$", (ROOT / "docs/gpus.md").read_text(), re.MULTILINE)
    assert wheels.items() <= dict(rows).items()
