"""The check of words refuses clauses for nouns and obscure phrases, in Rust and in Python, and takes plain ones."""

from pathlib import Path

import pytest

from tests.words import ROOT, SOURCES, faults, main, python_comments, rust_comments


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("//! Who comes first.\n", [1]),
        ("fn f() {}\n\n/// An event.\nstruct A {\n    /// Of the device.\n    a: u32,\n}\n", [5]),
        ("/// *Live.* Whom to serve.\n", [1]),
        ("/// The name\n/// of a block.\n", []),
        ("/// # Safety\n///\n/// As for `run`.\n", []),
        ("/// Whether it waits.\n", []),
        ("// Of the group: code, not documentation.\nlet a = 1; // of the group\n", []),
        ("let a = 1; // this comes to nothing\n", [1]),
        ("// A row that comes\n// to nothing.\n", [1]),
        ('let a = "https://what waits";\n', []),
    ],
)
def test_rust(source: str, lines: list[int]) -> None:
    assert [int(fault.split(":")[0]) for fault in faults(rust_comments(source))] == lines


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('"""What waits."""\n', [1, 1]),
        ('"""A queue."""\n\n\nclass A:\n    def f(self):\n        """Those of\n        the device."""\n', [6]),
        ('async def f():\n    """Events, those of one core."""\n    return "What waits"\n', []),
        ("a = 1  # lest it stays\n", [1]),
        ("# Of the device, without a docstring.\n", []),
    ],
)
def test_python(source: str, lines: list[int]) -> None:
    assert [int(fault.split(":")[0]) for fault in faults(python_comments(source))] == lines


def test_a_fault_says_where_it_is_and_what_is_better(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rust/src").mkdir(parents=True)
    (tmp_path / "rust/src/queue.rs").write_text("//! A queue.\n\n/// Whose it is, for want of a name.\nstruct A;\n")
    assert main(tmp_path) == 1
    assert capsys.readouterr().out.splitlines() == [
        "rust/src/queue.rs:3: opens with 'Whose': begin with a noun phrase or a verb",
        "rust/src/queue.rs:3: says 'for want of': use plain words, such as 'for lack of'",
    ]
    (tmp_path / "rust/src/queue.rs").write_text("//! A queue.\n")
    assert main(tmp_path) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("pattern", SOURCES)
def test_sources_are_found(pattern: str) -> None:
    assert len(list(ROOT.glob(pattern))) > 20
