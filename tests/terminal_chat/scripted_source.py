"""A source whose answers are scripted, and a display that keeps what it is shown."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from pyllm.errors import PyllmError
from pyllm.terminal_chat.answers import AnswerPiece, Fields, Message

Answer = Sequence[AnswerPiece | PyllmError]


class ScriptedSource:
    """Gives `answers` in turn. One that ends without a finish reason goes on for ever, until it is left."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str | list[Message], Fields]] = []
        self.model = "scripted"
        self.has_chat_template = True
        self.chat_template: str | None = "{{ messages }}"
        self.is_started = self.is_closed = False
        self.num_left = 0  # answers that were left before their end
        self.is_silent = asyncio.Event()  # an answer has come to where it goes on for ever

    @property
    def description(self) -> str:
        return f"{self.model} of a test"

    async def start(self, for_chat: bool) -> None:
        if for_chat and not self.has_chat_template:
            raise PyllmError("no chat template")
        self.is_started = True

    async def models(self) -> list[str]:
        return ["scripted", "other"]

    async def select(self, name: str) -> None:
        if name not in await self.models():
            raise PyllmError(f"no model {name}")
        self.model = name

    async def answer(self, prompt: str | Sequence[Message], fields: Fields) -> AsyncGenerator[AnswerPiece, None]:
        self.asked.append((prompt if isinstance(prompt, str) else list(prompt), fields))
        is_finished = False
        try:
            for piece in self.answers.pop(0):
                if isinstance(piece, PyllmError):
                    is_finished = True
                    raise piece
                is_finished |= piece.finish_reason is not None
                yield piece
            if not is_finished:
                self.is_silent.set()
                await asyncio.Event().wait()
        finally:
            self.num_left += not is_finished

    async def close(self) -> None:
        self.is_closed = True


class KeptDisplay:
    """Keeps everything as lines."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.errors: list[str] = []
        self.answers: list[str] = []
        self.summaries: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def error(self, text: str) -> None:
        self.errors.append(text)

    def begin_answer(self) -> None:
        self.answers.append("")

    def add(self, piece: AnswerPiece) -> None:
        self.answers[-1] += piece.content

    async def end_answer(self, summary: str) -> None:
        self.summaries.append(summary)


def whole(text: str, reason: str = "stop") -> Answer:
    """An answer of one piece."""
    return [AnswerPiece(text), AnswerPiece(finish_reason=reason)]
