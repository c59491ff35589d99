"""One chat: asks questions, shows the answers and keeps both, with the fields of requests. Ctrl-C stops an answer.

Sources and displays are alike; neither kind is imported here. A saved chat is a body for `POST /v1/chat/completions`.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from pyllm.errors import PyllmError, RequestError
from pyllm.terminal_chat.answers import FIELD_NAMES, AnswerPiece, Fields, Message, checked

if TYPE_CHECKING:
    from pyllm.terminal_chat.display import PlainDisplay
    from pyllm.terminal_chat.engine_source import EngineSource
    from pyllm.terminal_chat.server_source import ServerSource
    from pyllm.terminal_chat.terminal_display import TerminalDisplay

AnswerSource: TypeAlias = "EngineSource | ServerSource"
Display: TypeAlias = "PlainDisplay | TerminalDisplay"


class _SavedMessage(msgspec.Struct):
    role: str
    content: str


class _Saved(msgspec.Struct):
    messages: list[_SavedMessage]


class ChatSession:
    """A conversation with a started source. `clock` returns seconds."""

    def __init__(
        self,
        source: AnswerSource,
        display: Display,
        system: str = "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.source = source
        self.display = display
        self.system = system
        self.messages: list[Message] = []  # questions and answers in turn, without the system prompt
        self.fields: Fields = {}
        self.unanswered: str | None = None  # the last question, if it got no answer at all
        self._clock = clock

    async def ask(self, question: str) -> bool:
        """Show the answer, and keep the text received; return whether it is complete."""
        task = asyncio.create_task(self._answer(question))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, task.cancel)
        try:
            await asyncio.wait({task})
        finally:
            loop.remove_signal_handler(signal.SIGINT)
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

    def take_last_question(self) -> str | None:
        """Remove the last question and its answer; return the question, or None if there is none."""
        if self.unanswered is not None:
            return self.unanswered
        questions = [index for index, message in enumerate(self.messages) if message["role"] == "user"]
        if not questions:
            return None
        question = self.messages[questions[-1]]["content"]
        del self.messages[questions[-1] :]
        return question

    def save(self, path: Path) -> None:
        """Write the file, in place of an earlier one of the same kind.

        Raises:
            PyllmError: the file cannot be written, or is of another kind.
        """
        if path.exists():
            try:
                msgspec.json.decode(path.read_bytes(), type=_Saved)
            except (OSError, msgspec.DecodeError, UnicodeDecodeError):
                raise PyllmError(f"{path} is there and is no saved conversation: choose another name") from None
        body = {"model": self.source.model, "messages": self._with_system(self.messages), **self.fields}
        try:
            path.write_bytes(msgspec.json.format(msgspec.json.encode(body)) + b"\n")
        except OSError as error:
            raise PyllmError(f"cannot write {path}: {error.strerror}") from None

    def load(self, path: Path) -> None:
        """Go on with the conversation in a file; other fields of the body are ignored.

        Raises:
            PyllmError: the file cannot be read, or is no conversation.
        """
        try:
            content = path.read_bytes()
            messages = [msgspec.to_builtins(message) for message in msgspec.json.decode(content, type=_Saved).messages]
            body = msgspec.json.decode(content)
            fields = checked({name: body.get(name) for name in FIELD_NAMES})
        except OSError as error:
            raise PyllmError(f"cannot read {path}: {error.strerror}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RequestError) as error:
            raise PyllmError(f"{path} is no saved conversation: {error}") from None
        self.fields = fields
        self.system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else ""
        self.messages = messages
        self.unanswered = None

    def _with_system(self, messages: list[Message]) -> list[Message]:
        return [{"role": "system", "content": self.system}, *messages] if self.system else messages

    async def _answer(self, question: str) -> None:
        answer: list[AnswerPiece] = []
        times = [self._clock()]
        asked = {"role": "user", "content": question}
        is_stopped = False
        self.unanswered = question
        self.display.begin_answer()
        try:
            stream = self.source.answer(self._with_system([*self.messages, asked]), self.fields)
            async with contextlib.aclosing(stream) as pieces:
                async for piece in pieces:
                    answer.append(piece)
                    if piece.content or piece.reasoning:
                        times.append(self._clock())
                    self.display.add(piece)
        except asyncio.CancelledError:
            is_stopped = True
            raise
        finally:
            await self.display.end_answer(_summary(answer, times, is_stopped))
            if text := "".join(piece.content for piece in answer):
                self.messages += [asked, {"role": "assistant", "content": text}]
                self.unanswered = None


def _summary(pieces: list[AnswerPiece], times: list[float], is_stopped: bool) -> str:
    """Tokens, tokens per second after the first one, the time to the first one; unknown figures are left out.

    `times` are of the request and of each text. A stopped answer has no token counts, since they arrive with the end.
    """
    parts = ["stopped"] * is_stopped
    usage = next((piece.usage for piece in reversed(pieces) if piece.usage is not None), None)
    reason = next((piece.finish_reason for piece in reversed(pieces) if piece.finish_reason is not None), "stop")
    start, *arrivals = times
    if usage is not None:
        parts.append(f"{usage.completion_tokens} tokens")
        if arrivals and arrivals[-1] > arrivals[0] and usage.completion_tokens > 1:
            parts.append(f"{(usage.completion_tokens - 1) / (arrivals[-1] - arrivals[0]):.1f} tokens/s")
    if arrivals:
        parts.append(f"first token after {arrivals[0] - start:.2f} s")
    if usage is not None:
        details = usage.prompt_tokens_details
        cached = f" ({details.cached_tokens} cached)" if details is not None and details.cached_tokens else ""
        parts.append(f"prompt {usage.prompt_tokens} tokens{cached}")
    if reason != "stop":
        parts.append("cut off at the limit of tokens" if reason == "length" else f"ended by {reason}")
    return " · ".join(parts)
