import asyncio
import io
import os
import pty
import re
import termios
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from pyllm.terminal_chat.answers import AnswerPiece
from pyllm.terminal_chat.terminal_display import THEME, TerminalDisplay
from pyllm.terminal_chat.terminal_text import plain

_CODE = re.compile(r"\x1b\[(\?25[hl]|[\d;]*m|\d*[AK])|\r|\n|[^\x1b\r\n]+")
MARKDOWN = (
    "# Title\n\nSome **bold** text that is longer than a line of this small terminal has room for.\n\n"
    "- one\n- two\n  - inner\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nprint('x')\n\n# comment\n```\n\n"
    "> quote\n\n1. first\n2. second\n\nThe end"
)


class Screen:
    """What a terminal of endless height shows of the codes that the display uses; others are an error."""

    def __init__(self) -> None:
        self.lines = [""]
        self.row = 0

    def write(self, text: str) -> None:
        position = 0
        while position < len(text):
            match = _CODE.match(text, position)
            assert match is not None, text[position : position + 9]
            position = match.end()
            self._apply(match[0], match[1])

    def wrap(self, width: int) -> None:
        """Become narrower, as terminals do: lines that are longer go on in the next one."""
        assert self.row == len(self.lines) - 1
        self.lines = [
            line[start : start + width] for line in self.lines for start in range(0, max(1, len(line)), width)
        ]
        self.row = len(self.lines) - 1

    def _apply(self, text: str, code: str | None) -> None:
        if text == "\n":
            self.row += 1
            if self.row == len(self.lines):
                self.lines.append("")
        elif code is None:
            self.lines[self.row] += text if text != "\r" else ""
        elif code.endswith("A"):
            self.row -= int(code[:-1] or 1)
            assert self.row >= 0
        elif code == "2K":
            self.lines[self.row] = ""


def console_of(output: io.StringIO, height: int = 12) -> Console:
    return Console(file=output, force_terminal=True, width=40, height=height, theme=THEME, highlight=False)


class Clock:
    """A clock that stands still but for pauses."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def pause(self, seconds: float) -> None:
        self.now += seconds


async def show(pieces: list[AnswerPiece], height: int = 12) -> str:
    """The screen at the end, drawn after each piece."""
    output = io.StringIO()
    display = TerminalDisplay(console_of(output, height))
    display.begin_answer()
    for piece in pieces:
        display.add(piece)
        display.draw()
    await display.end_answer("figures")
    screen = Screen()
    screen.write(output.getvalue())
    assert output.getvalue().rindex("\x1b[?25h") > output.getvalue().rindex("\x1b[?25l")
    return "\n".join(line.rstrip() for line in screen.lines)


@settings(max_examples=25)
@given(st.lists(st.integers(0, len(MARKDOWN))), st.integers(3, 40))
def test_the_screen_does_not_depend_on_how_the_answer_came(cuts: list[int], height: int) -> None:
    ends = sorted({0, len(MARKDOWN), *cuts})
    pieces = [AnswerPiece(MARKDOWN[start:end]) for start, end in pairwise(ends)]
    assert asyncio.run(show(pieces, height)) == asyncio.run(show([AnswerPiece(MARKDOWN)]))


async def test_blocks_are_markdown_with_one_blank_line_between_them() -> None:
    assert await show([AnswerPiece(MARKDOWN)]) == (
        "\nTitle\n\nSome bold text that is longer than a\nline of this small terminal has room\nfor.\n\n"
        " • one\n • two\n    • inner\n\n a  b\n ────\n 1  2\n\n print('x')\n\n # comment\n\n"
        "▌ quote\n\n 1 first\n 2 second\n\nThe end\n\nfigures\n\n"
    )


async def test_reasoning_is_dimmed_text_before_the_answer() -> None:
    output = io.StringIO()
    display = TerminalDisplay(console_of(output))
    display.begin_answer()
    display.add(AnswerPiece(reasoning="I *think*.\n\nMore"))
    display.add(AnswerPiece("An *answer*."))
    await display.end_answer("")
    text = output.getvalue()
    assert "\x1b[2;3mI *think*." in text
    assert "\x1b[2;3mMore" in text
    assert "An \x1b[3manswer\x1b[0m." in text


async def test_code_has_colours() -> None:
    output = io.StringIO()
    display = TerminalDisplay(console_of(output))
    display.begin_answer()
    display.add(AnswerPiece("```python\ndef f(): pass\n```\n\nend"))
    await display.end_answer("")
    assert re.search(r"\x1b\[[\d;]+mdef\x1b", output.getvalue())


async def test_a_finished_block_is_written_once_and_a_growing_one_fits_the_screen() -> None:
    output = io.StringIO()
    display = TerminalDisplay(console_of(output, height=8))
    display.begin_answer()
    display.add(AnswerPiece("finished block\n\n```\n"))
    for number in range(30):
        display.add(AnswerPiece(f"line {number}\n"))
        start = output.tell()
        display.draw()
        assert output.getvalue()[start:].count("\n") <= 6
    assert f"line {number}" in output.getvalue()[start:]
    assert output.getvalue().count("finished block") == 1
    await display.end_answer("")


async def test_drawing_happens_by_itself() -> None:
    output = io.StringIO()
    display = TerminalDisplay(console_of(output))
    display.begin_answer()
    display.add(AnswerPiece("half a blo"))
    while "half a blo" not in output.getvalue():
        await asyncio.sleep(0)
    await display.end_answer("")


async def test_a_model_cannot_command_the_terminal() -> None:
    attack = "\x1b]0;title\x07\x1b[2Jtext\x9b1A`\x1b[31m`"
    text = await show([AnswerPiece(attack + "\n\nend"), AnswerPiece(reasoning=attack)])
    assert "]0;title[2Jtext1A[31m" in text
    output = io.StringIO()
    display = TerminalDisplay(console_of(output))
    display.error(attack)
    display.notice(attack)
    assert "\x1b[2J" not in output.getvalue()
    assert plain("a\tb\r\nc\x00\x7f") == "a\tb\nc"


async def test_a_terminal_that_is_made_narrower_shows_nothing_twice() -> None:
    output = io.StringIO()
    console = console_of(output)
    clock = Clock()
    display = TerminalDisplay(console, clock, pause=clock.pause)
    display.begin_answer()
    text = "A paragraph that is long enough for two lines of forty columns, and more words"
    display.add(AnswerPiece(text))
    display.draw()
    screen = Screen()
    screen.write(output.getvalue())
    screen.wrap(15)
    start = output.tell()
    console.width = 15
    display.add(AnswerPiece(" at its end."))
    display.draw()
    await display.end_answer("")
    screen.write(output.getvalue()[start:])
    assert " ".join(" ".join(line.strip() for line in screen.lines).split()) == f"{text} at its end."


async def test_nothing_is_drawn_until_the_size_has_settled() -> None:
    output, clock = io.StringIO(), Clock()
    console = console_of(output)
    display = TerminalDisplay(console, clock, pause=clock.pause)
    display.begin_answer()
    display.add(AnswerPiece("one\n\ntwo"))
    display.draw()
    start = output.tell()
    for width in (30, 20, 20):  # The last one is looked at again too early.
        console.width = width
        clock.now += 0.1
        display.add(AnswerPiece(" more\n\nand"))
        display.draw()
    assert output.tell() == start
    clock.now += 0.3
    display.draw()
    assert output.getvalue()[start:].count("two more") == 1
    console.width = 10
    before = clock.now
    await display.end_answer("")
    assert clock.now > before
    assert output.getvalue()[start:].count("two more") == 1


async def test_what_is_typed_during_an_answer_is_hidden() -> None:
    leader, keyboard = pty.openpty()
    try:
        display = TerminalDisplay(console_of(io.StringIO()), keyboard=keyboard)
        before = termios.tcgetattr(keyboard)
        display.begin_answer()
        assert not termios.tcgetattr(keyboard)[3] & termios.ECHO
        await display.end_answer("")
        assert termios.tcgetattr(keyboard) == before
        assert before[3] & termios.ECHO
    finally:
        os.close(leader)
        os.close(keyboard)
