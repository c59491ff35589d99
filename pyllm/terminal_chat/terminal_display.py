"""Answers on a terminal as Markdown: finished blocks are printed once, the last one is redrawn as it grows.

Knows neither the source nor the conversation.
"""

import asyncio
import termios
import time
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from rich.console import Console, RenderableType
from rich.control import Control
from rich.markdown import Heading, Markdown
from rich.segment import ControlType, Segment, Segments
from rich.text import Text
from rich.theme import Theme

from pyllm.terminal_chat.answers import AnswerPiece
from pyllm.terminal_chat.markdown_blocks import MarkdownBlocks
from pyllm.terminal_chat.terminal_text import plain

_FRAME = 0.05  # seconds between redraws of the last block, or more if one takes long
_DRAWING_SHARE = 0.2  # of the time, for drawing, at most
# Seconds without drawing after a resize. Terminals may wrap the lines anew before they report the size, tmux by 250 ms.
_SETTLING = 0.3
# Without rich's black background, which does not fit a light terminal.
THEME = Theme({"markdown.code": "bold cyan"})
_CODE_THEME = "ansi_dark"  # the terminal's own colours, on its own background


class TerminalDisplay:
    """Draws on `console`, in a running event loop. During an answer, input at the terminal `keyboard` is not echoed.

    `pause` sleeps for a number of seconds.
    """

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        keyboard: int | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._console = console or Console(highlight=False, theme=THEME)
        self._clock = clock
        self._keyboard = keyboard
        self._pause = pause
        self._echo: list[Any] | None = None  # the terminal's attributes before the answer
        self._blocks = MarkdownBlocks()
        self._is_reasoning = False
        self._finished: list[RenderableType | None] = []  # blocks that are not printed yet
        self._drawn: list[int] = []  # widths of the drawn lines of the last block; the cursor is below them
        self._size = self._console.size
        self._settled = 0.0  # when the size has been the same for long enough
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
        self._size = self._console.size
        self._echo = _without_echo(self._keyboard)
        self._console.show_cursor(False)
        self._console.print()

    def add(self, piece: AnswerPiece) -> None:
        """Take more of the answer, and schedule a drawing."""
        for text, is_reasoning in ((piece.reasoning, True), (piece.content, False)):
            if not text:
                continue
            if is_reasoning != self._is_reasoning:
                self._finished.append(self._rendered(self._blocks.take()))
                self._is_reasoning = is_reasoning
            self._finished += [self._rendered(block) for block in self._blocks.feed(text)]
        if self._timer is None:
            self._draw_after(self._next_frame - self._clock())

    def draw(self) -> None:
        """Print the finished blocks and redraw the last one, unless the terminal is being resized."""
        self._timer = None
        if seconds := self._settling():
            self._draw_after(seconds)
            return
        start = self._clock()
        self._replace(self._rendered(self._blocks.rest))
        end = self._clock()
        self._next_frame = end + max(_FRAME, (end - start) / _DRAWING_SHARE)

    async def end_answer(self, summary: str) -> None:
        """Print the last block and the figures, once the terminal's size stays."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            while seconds := self._settling():
                await self._pause(seconds)
        finally:
            self._finished.append(self._rendered(self._blocks.take()))
            self._replace()
            self._is_reasoning = False
            if summary:
                self.notice(summary)
            self._console.print()
            self._console.show_cursor(True)
            if self._keyboard is not None and self._echo is not None:
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._echo)

    def _draw_after(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self.draw)

    def _settling(self) -> float:
        """Seconds until the terminal's size counts as settled; 0 if it does."""
        now = self._clock()
        if self._console.size != self._size:
            self._size = self._console.size
            self._settled = now + _SETTLING
        return max(0.0, self._settled - now)

    def _replace(self, growing: RenderableType | None = None) -> None:
        """Replace the drawn lines by the finished blocks, and draw the last lines of the growing one below them."""
        erase = (ControlType.ERASE_IN_LINE, 2)
        # A terminal that was made narrower has wrapped the drawn lines.
        height = sum(max(1, -(-width // self._console.width)) for width in self._drawn)
        with self._console:  # The console writes everything at once at the end of the block.
            self._console.control(
                Control(ControlType.CARRIAGE_RETURN, erase, *[(ControlType.CURSOR_UP, 1), erase] * height)
            )
            for block in self._finished:
                if block is not None:
                    self._write([*self._lines(block), []])
            self._finished.clear()
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
