"""Answers on a terminal as Markdown: finished blocks are printed once, the last one is drawn again as it grows.

Knows neither the source nor the conversation.
"""

import asyncio
import time
from collections.abc import Callable
from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Heading, Markdown
from rich.segment import Segment
from rich.text import Text

from pyllm.terminal_chat.answer_source import AnswerPiece
from pyllm.terminal_chat.markdown_blocks import MarkdownBlocks
from pyllm.terminal_chat.terminal_text import plain

_FRAME = 0.05  # seconds between two drawings of the last block, or more where one takes long
_DRAWING_SHARE = 0.2  # of the time, at most
_CODE_THEME = "ansi_dark"  # the terminal's own colours, on its own background


class TerminalDisplay:
    """Shows on `console`, within a running event loop."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(highlight=False)
        self._clock = clock
        self._blocks = MarkdownBlocks()
        self._is_reasoning = False
        self._live: Live | None = None
        self._next_frame = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def notice(self, text: str) -> None:
        """Dimmed."""
        self._console.print(Text(plain(text), style="dim"))

    def error(self, text: str) -> None:
        """In red."""
        self._console.print(Text(plain(text), style="red"))

    def begin_answer(self) -> None:
        """Reserve the last lines for the block that grows."""
        self._console.print()
        # Its own limit cuts the end off, where the news is: `_Tail` cuts the beginning.
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            vertical_overflow="visible",
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def add(self, piece: AnswerPiece) -> None:
        """Print the blocks that this finishes, and draw the rest soon."""
        for text, is_reasoning in ((piece.reasoning, True), (piece.content, False)):
            if not text:
                continue
            if is_reasoning != self._is_reasoning:
                self._print(self._blocks.take())
                self._is_reasoning = is_reasoning
            for block in self._blocks.feed(text):
                self._print(block)
        self._draw_soon()

    def end_answer(self, summary: str) -> None:
        """Print the last block and the figures."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._print(self._blocks.take())
        self._is_reasoning = False
        if self._live is not None:
            self._live.update("", refresh=True)
            self._live.stop()
            self._live = None
        if summary:
            self.notice(summary)
        self._console.print()

    def _print(self, block: str) -> None:
        if not block.strip():
            return
        if self._live is not None:
            self._live.update("")  # What is printed stands where it was.
        self._console.print(self._rendered(block))
        self._console.print()

    def _rendered(self, block: str) -> RenderableType:
        if self._is_reasoning:
            return Text(plain(block).strip(), style="dim italic")
        return _AnswerMarkdown(plain(block).strip("\n"), code_theme=_CODE_THEME, hyperlinks=False)

    def _draw_soon(self) -> None:
        if self._timer is None:
            delay = max(0.0, self._next_frame - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self._draw)

    def _draw(self) -> None:
        self._timer = None
        assert self._live is not None
        start = self._clock()
        self._live.update(_Tail(self._rendered(self._blocks.rest)), refresh=True)
        end = self._clock()
        self._next_frame = end + max(_FRAME, (end - start) / _DRAWING_SHARE)


class _Heading(Heading):
    """On the left, as all others are."""

    LEVEL_ALIGN = dict.fromkeys(Heading.LEVEL_ALIGN, "left")


class _AnswerMarkdown(Markdown):
    elements: ClassVar = {**Markdown.elements, "heading_open": _Heading}


class _Tail:
    """The last lines of what does not fit on the screen."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._content, options.update(height=None), pad=False)
        for line in lines[-max(1, console.height - 2) :]:
            yield from line
            yield Segment.line()
