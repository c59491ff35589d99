"""A conversation so far: its messages and the parameters of the next answer; saved to a file, and loaded again.

The file is a body for `POST /v1/chat/completions`. Sends no request.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pyllm.errors import PyllmError, RequestError
from pyllm.terminal_chat.answer_source import AnswerParameters, Message

# Parameters that `/params` shows and sets. `/set` sets the other ones, and `n` is for completions.
_OTHERS = frozenset({"n", "response_format", "chat_template_kwargs"})
PARAMETER_NAMES = tuple(name for name in AnswerParameters.__struct_fields__ if name not in _OTHERS)


class _SavedMessage(msgspec.Struct):
    role: str
    content: str


class _Saved(msgspec.Struct):
    messages: list[_SavedMessage]


class Transcript:
    """Questions and answers in turn, after the system prompt, if there is one."""

    def __init__(self, system: str = "", parameters: AnswerParameters | None = None) -> None:
        self.system = system
        self.parameters = parameters or AnswerParameters()
        self.messages: list[Message] = []  # without the system prompt

    def asking(self, question: str) -> list[Message]:
        """The messages of a request with the next question."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages, {"role": "user", "content": question}]

    def add(self, question: str, answer: str) -> None:
        """Keep a question with its answer."""
        self.messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def take_last_question(self) -> str | None:
        """Remove the last question and its answer; return the question, or None if there is none."""
        questions = [index for index, message in enumerate(self.messages) if message["role"] == "user"]
        if not questions:
            return None
        question = self.messages[questions[-1]]["content"]
        del self.messages[questions[-1] :]
        return question

    def set_parameter(self, name: str, text: str) -> None:
        """Set a parameter from typed text; `default` unsets it.

        Raises:
            RequestError: there is no such parameter, or the value is wrong.
        """
        if name not in PARAMETER_NAMES:
            raise RequestError(f"there is no parameter {name!r}: choose from {', '.join(PARAMETER_NAMES)}")
        try:
            self.change({name: None if text == "default" else _read_value(name, text)})
        except msgspec.ValidationError as error:
            reason = str(error).partition(" - ")[0].replace(" | null", "")
            raise RequestError(f"{name} cannot be {text!r}: {reason}") from None

    def change(self, fields: Mapping[str, Any]) -> None:
        """Set these parameters; None unsets one."""
        self.parameters = msgspec.convert({**self.parameters.given(), **fields}, AnswerParameters)

    def save(self, path: Path, model: str) -> None:
        """Write the file, in place of an earlier one of the same kind.

        Raises:
            PyllmError: the file cannot be written, or is of another kind.
        """
        if path.exists():
            try:
                msgspec.json.decode(path.read_bytes(), type=_Saved)
            except (OSError, msgspec.DecodeError):
                raise PyllmError(f"{path} is there and is no saved conversation: choose another name") from None
        body = {"model": model, "messages": self.asking("")[:-1], **self.parameters.given()}
        try:
            path.write_bytes(msgspec.json.format(msgspec.json.encode(body)) + b"\n")
        except OSError as error:
            raise PyllmError(f"cannot write {path}: {error.strerror}") from None


def load_transcript(path: Path) -> Transcript:
    """The conversation in a file; other fields of the body are ignored.

    Raises:
        PyllmError: the file cannot be read, or is no conversation.
    """
    try:
        content = path.read_bytes()
        messages = msgspec.json.decode(content, type=_Saved).messages
        transcript = Transcript(parameters=msgspec.json.decode(content, type=AnswerParameters))
    except OSError as error:
        raise PyllmError(f"cannot read {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise PyllmError(f"{path} is no saved conversation: {error}") from None
    if messages and messages[0].role == "system":
        transcript.system = messages.pop(0).content
    transcript.messages = [{"role": message.role, "content": message.content} for message in messages]
    return transcript


def _read_value(name: str, text: str) -> Any:
    """The value of a typed text, which may be JSON; that of `stop` becomes a list."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = text
    return [text if not isinstance(value, str) else value] if name == "stop" and not isinstance(value, list) else value
