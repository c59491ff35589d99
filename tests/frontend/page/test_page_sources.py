"""What the page's sources may not do, which no run shows: write HTML, run text, load from elsewhere, grow large."""

import re

import pytest

from tests.frontend.page.test_page_files import FILES, STATIC

MAX_BYTES = 300_000
# Other people's, unchanged; loaded only where a page needs it. With words of the licence, and FORBIDDEN ones:
# highlight.js writes HTML into an element that it is given, which WRITERS forbids; its grammars know the name "eval".
VENDORED = {
    "vendor/highlight.js": ("Redistribution and use in source and binary forms", ["innerHTML"] * 2 + ["eval"] * 5),
    "vendor/katex.js": ("Permission is hereby granted", []),
}
MAX_VENDORED_BYTES = 380_000
SCRIPTS = {name: path for name, path in FILES.items() if name.endswith(".js") and name not in VENDORED}
STYLES = {name: path for name, path in FILES.items() if name.endswith(".css")}
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|setHTML|document\.write|createContextualFragment|DOMParser|srcdoc"
    r"|\beval\b|\bFunction\(|set(?:Timeout|Interval)\(['\"`]|import\((?!['\"])|importScripts|javascript:"
)
WRITERS = re.compile(r"highlight(?:Element|Block|All)|initHighlighting")
IMPORT = re.compile(r"""^(?:import|export) [^;]*? from "([^"]+)";$""", re.MULTILINE)
# What is loaded only when it is needed.
LATER = re.compile(r"""import\("([^"]+)"\)""")
# The names of two things, not addresses that anything is loaded from.
NAMES = {"http://www.w3.org/2000/svg"}


def test_the_page_is_small() -> None:
    assert sum(path.stat().st_size for name, path in FILES.items() if name not in VENDORED) <= MAX_BYTES
    assert sum(FILES[name].stat().st_size for name in VENDORED) <= MAX_VENDORED_BYTES


@pytest.mark.parametrize("name", VENDORED)
def test_what_others_wrote_has_its_licence_and_writes_no_html(name: str) -> None:
    licence, words = VENDORED[name]
    text = FILES[name].read_text()
    assert licence in text[:2000]
    assert FORBIDDEN.findall(text) == words


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_makes_nodes_and_runs_no_text(name: str) -> None:
    text = SCRIPTS[name].read_text()
    assert FORBIDDEN.findall(text) == WRITERS.findall(text) == []
    assert text.startswith("// "), "it says first what it owns"
    assert [line for line in text.splitlines() if len(line) > 120] == []


@pytest.mark.parametrize("name", [*SCRIPTS, *STYLES, "index.html"])
def test_a_file_loads_nothing_from_elsewhere(name: str) -> None:
    text = FILES[name].read_text()
    assert {address for address in re.findall(r"\w+://\w[\w./]*", text) if address not in NAMES} == set()
    assert name not in STYLES or not re.findall(r"@import|url\(", text)


def test_the_document_has_no_script_and_no_style_within() -> None:
    text = FILES["index.html"].read_text()
    assert re.findall(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=", text) == []


def test_every_file_is_loaded_and_every_import_leads_to_one() -> None:
    document = FILES["index.html"].read_text()
    loaded = set(re.findall(r'(?:href|src)="page/([^"]+)"', document)) | {"index.html"}
    waiting = [name for name in loaded if name.endswith(".js")]
    while waiting:
        path = FILES[waiting.pop()]
        for target in [*IMPORT.findall(path.read_text()), *LATER.findall(path.read_text())]:
            name = str((path.parent / target).resolve().relative_to(STATIC.resolve()))
            if name not in loaded:
                loaded.add(name)
                waiting.append(name)
    assert loaded == set(FILES)
