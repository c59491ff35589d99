"""Answers on a terminal as Markdown: finished blocks are printed once, the last one is redrawn as it grows.

Knows neither the source nor the conversation.
"""

import asyncio
import termios
import time
from collections.abc import Callable
from typing import Any, ClassVar

from rich.console import Console, RenderableType
from rich.control import Control
from rich.markdown import Heading, Markdown
from rich.segment import ControlType, Segment, Segments
from rich.text import Text
from rich.theme import Theme

from pyllm.terminal_chat.answer_source import AnswerPiece
from pyllm.terminal_chat.markdown_blocks import MarkdownBlocks
from pyllm.terminal_chat.terminal_text import plain

_FRAME = 0.05  # seconds between redraws of the last block, or more if one takes long
_DRAWING_SHARE = 0.2  # of the time, for drawing, at most
# Without rich's black background, which does not fit a light terminal.
THEME = Theme({"markdown.code": "bold cyan"})
_CODE_THEME = "ansi_dark"  # the terminal's own colours, on its own background


class TerminalDisplay:
    """Draws on `console`, in a running event loop. During an answer, input at the terminal `keyboard` is not echoed."""

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        keyboard: int | None = None,
    ) -> None:
        self._console = console or Console(highlight=False, theme=THEME)
        self._clock = clock
        self._keyboard = keyboard
        self._echo: list[Any] | None = None  # the terminal's attributes before the answer
        self._blocks = MarkdownBlocks()
        self._is_reasoning = False
        self._drawn: list[int] = []  # widths of the drawn lines of the last block; the cursor is below them
        self._next_frame = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def notice(self, text: str) -> None:
        """Print the notice dimmed."""
        self._console.print(Text(plain(text), style="dim"))

    def error(self, text: str) -> None:
        """Print the error in red."""
        self._console.print(Text(plain(text), style="red"))

    def begin_answer(self) -> None:
        """Hide the cursor and typed text, which would move the lines to be redrawn."""
        self._echo = _without_echo(self._keyboard)
        self._console.show_cursor(False)
        self._console.print()

    def add(self, piece: AnswerPiece) -> None:
        """Print the blocks that this piece finishes, and schedule a redraw of the rest."""
        finished = []
        for text, is_reasoning in ((piece.reasoning, True), (piece.content, False)):
            if not text:
                continue
            if is_reasoning != self._is_reasoning:
                finished.append(self._rendered(self._blocks.take()))
                self._is_reasoning = is_reasoning
            finished += [self._rendered(block) for block in self._blocks.feed(text)]
        if any(finished):
            self._replace(finished)
        if self._timer is None:
            delay = max(0.0, self._next_frame - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self.draw)

    def draw(self) -> None:
        """Redraw the unfinished last block; `add` schedules it."""
        self._timer = None
        start = self._clock()
        self._replace([], self._rendered(self._blocks.rest))
        end = self._clock()
        self._next_frame = end + max(_FRAME, (end - start) / _DRAWING_SHARE)

    def end_answer(self, summary: str) -> None:
        """Print the last block and the figures."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._replace([self._rendered(self._blocks.take())])
        self._is_reasoning = False
        if summary:
            self.notice(summary)
        self._console.print()
        self._console.show_cursor(True)
        if self._keyboard is not None and self._echo is not None:
            termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._echo)

    def _replace(self, finished: list[RenderableType | None], growing: RenderableType | None = None) -> None:
        """Replace the drawn lines by finished blocks, and draw the last lines of the growing one below them."""
        erase = (ControlType.ERASE_IN_LINE, 2)
        # A terminal that was made narrower has wrapped the drawn lines.
        height = sum(max(1, -(-width // self._console.width)) for width in self._drawn)
        with self._console:  # The console writes everything at once at the end of the block.
            self._console.control(
                Control(ControlType.CARRIAGE_RETURN, erase, *[(ControlType.CURSOR_UP, 1), erase] * height)
            )
            for block in finished:
                if block is not None:
                    self._write([*self._lines(block), []])
            lines = [] if growing is None else self._lines(growing)[-max(1, self._console.height - 2) :]
            self._write(lines)
            self._drawn = [Segment.get_line_length(line) for line in lines]

    def _lines(self, block: RenderableType) -> list[list[Segment]]:
        """The lines of a block, without the blank ones around it."""
        lines = self._console.render_lines(block, pad=False)
        filled = [index for index, line in enumerate(lines) if any(segment.text.strip() for segment in line)]
        return lines[filled[0] : filled[-1] + 1] if filled else []

    def _write(self, lines: list[list[Segment]]) -> None:
        for line in lines:
            self._console.print(Segments([*line, Segment.line()]), end="")

    def _rendered(self, block: str) -> RenderableType | None:
        if not block.strip():
            return None
        if self._is_reasoning:
            return Text(plain(block).strip(), style="dim italic")
        return _AnswerMarkdown(plain(block).strip("\n"), code_theme=_CODE_THEME, hyperlinks=False)


class _Heading(Heading):
    """A heading that is aligned left at every level."""

    LEVEL_ALIGN: ClassVar = dict.fromkeys(Heading.LEVEL_ALIGN, "left")


class _AnswerMarkdown(Markdown):
    elements: ClassVar = {**Markdown.elements, "heading_open": _Heading}


def _without_echo(keyboard: int | None) -> list[Any] | None:
    """Turn off the terminal's echo; return its attributes from before."""
    if keyboard is None:
        return None
    before = termios.tcgetattr(keyboard)
    flags = [*before]
    flags[3] &= ~termios.ECHO
    termios.tcsetattr(keyboard, termios.TCSADRAIN, flags)
    return before
