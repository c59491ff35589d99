"""One chat: asks questions, shows the answers and keeps both. Ctrl-C stops an answer.

Knows its source, its display and its input only by their interfaces.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable

from pyllm.errors import PyllmError
from pyllm.terminal_chat.answer_source import AnswerSource
from pyllm.terminal_chat.answer_timing import AnswerTiming
from pyllm.terminal_chat.display import Display
from pyllm.terminal_chat.transcript import Transcript

# Reads a message; raises EOFError at the end of input, and KeyboardInterrupt for Ctrl-C.
ReadMessage = Callable[[], Awaitable[str]]


class ChatSession:
    """A conversation with a started source. `clock` returns seconds."""

    def __init__(
        self,
        source: AnswerSource,
        display: Display,
        transcript: Transcript,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.source = source
        self.display = display
        self.transcript = transcript
        self.unanswered: str | None = None  # the last question, if it got no answer at all
        self._clock = clock
        self._answering: asyncio.Task[None] | None = None

    async def ask(self, question: str) -> bool:
        """Show the answer, and keep the text received; return whether it is complete."""
        task = self._answering = asyncio.create_task(self._answer(question))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.stop_answer)
        try:
            await asyncio.wait({task})
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            self._answering = None
            task.cancel()  # Has an effect only if this chat itself is cancelled.
        if task.cancelled():
            return False
        error = task.exception()
        if isinstance(error, PyllmError):
            self.display.error(str(error))
            return False
        if error is not None:
            raise error
        return True

    def stop_answer(self) -> None:
        """Stop the current answer, if there is one."""
        if self._answering is not None:
            self._answering.cancel()

    async def _answer(self, question: str) -> None:
        timing = AnswerTiming(self._clock)
        answer: list[str] = []
        messages = self.transcript.asking(question)
        self.unanswered = question
        self.display.begin_answer()
        try:
            async with contextlib.aclosing(self.source.chat(messages, self.transcript.parameters)) as pieces:
                async for piece in pieces:
                    timing.add(piece)
                    answer.append(piece.content)
                    self.display.add(piece)
        except asyncio.CancelledError:
            timing.is_stopped = True
            raise
        finally:
            await self.display.end_answer(timing.summary())
            if any(answer):
                self.transcript.add(question, "".join(answer))
                self.unanswered = None
