"""A scripted model's answers."""

from pathlib import Path

import msgspec
import pytest

from tests.clients.environment import PROGRAMS
from tests.clients.script import Script, Turn

SCRIPT = Script([Turn(["Look"], "first"), Turn(["Look", "found"], "second ", repeat=2)], "nothing")


def test_the_last_turn_whose_texts_occur_answers() -> None:
    assert SCRIPT.answer("Look there") == "first"
    assert SCRIPT.answer("Look there: found it") == "second second "


def test_the_default_answers_what_no_turn_is_for() -> None:
    assert SCRIPT.answer("Hi") == "nothing"


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.json")), ids=lambda path: path.stem)
def test_the_programs_scripts_are_scripts(path: Path) -> None:
    assert Script.read(path).turns


def test_a_misspelt_turn_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text('{"turns": [{"if": ["Hi"], "answer": "Hello"}]}')
    with pytest.raises(msgspec.ValidationError):
        Script.read(path)
