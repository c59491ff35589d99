"""The commands of a chat: lines that begin with a slash. Each is a function of the session and its argument."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pyllm.config.nearest_name import PEER_NAMES, nearest_name
from pyllm.errors import PyllmError, RequestError
from pyllm.terminal_chat.answers import PARAMETER_NAMES, Fields, checked
from pyllm.terminal_chat.chat_session import ChatSession

KEYS = """Enter sends. Alt-Enter, or a backslash at the end of the line, makes a new line.
Ctrl-C stops an answer; at an empty prompt twice, or Ctrl-D, it ends the chat."""

# Ollama's names of parameters that can be set only when a model starts.
_AT_THE_START = {"num_ctx": "--max-model-len", "num_gpu": "--device", "num_thread": "--num-threads"}
# Ollama's settings without a value, and the fields of a request that they set.
_SWITCHES: Mapping[str, Fields] = {
    "think": {"chat_template_kwargs": {"enable_thinking": True}},
    "nothink": {"chat_template_kwargs": {"enable_thinking": False}},
    "format json": {"response_format": {"type": "json_object"}},
    "noformat": {"response_format": None},
}


class QuitChat(Exception):  # noqa: N818 - it is no error
    """Raised to end the chat."""


class SlashCommand(msgspec.Struct, frozen=True):
    """A command: the argument that it takes, its help text, and its function."""

    takes: str
    help: str
    run: Callable[[ChatSession, str], Awaitable[None]]


async def run_command(session: ChatSession, line: str) -> None:
    """Run a line such as `/params temperature 0.2`.

    Raises:
        PyllmError: there is no such command, or it failed.
        QuitChat: the command ends the chat.
    """
    name, _, argument = line.partition(" ")
    command = SLASH_COMMANDS.get(name)
    if command is None:
        near = nearest_name(name, SLASH_COMMANDS)
        hint = f": did you mean {near}?" if near else "; /help lists them"
        raise PyllmError(f"there is no command {name}{hint} (a message that begins with / needs a space before it)")
    await command.run(session, argument.strip())


async def _help(session: ChatSession, argument: str) -> None:
    lines = [f"{f'{name} {command.takes}':24}{command.help}" for name, command in SLASH_COMMANDS.items()]
    session.display.notice("\n".join([*lines, "", KEYS]))


async def _system(session: ChatSession, argument: str) -> None:
    if argument:
        session.system = "" if argument == "-" else argument
    session.display.notice(f"system prompt: {session.system or 'none'}")


async def _save(session: ChatSession, argument: str) -> None:
    path = _path(argument, "/save")
    session.save(path)
    session.display.notice(f"{len(session.messages)} messages saved to {path}")


async def _load(session: ChatSession, argument: str) -> None:
    path = _path(argument, "/load")
    session.load(path)
    session.display.notice(f"{len(session.messages)} messages loaded from {path}")


async def _retry(session: ChatSession, argument: str) -> None:
    question = session.take_last_question()
    if question is None:
        raise PyllmError("there is no message to try again")
    await session.ask(question)


async def _params(session: ChatSession, argument: str) -> None:
    name, _, value = argument.replace("=", " ", 1).partition(" ")
    if name == "default":
        session.fields = {}
    elif name:
        if name not in PARAMETER_NAMES:
            raise RequestError(f"there is no parameter {name!r}: choose from {', '.join(PARAMETER_NAMES)}")
        if not value.strip():
            raise PyllmError(f"/params {name} needs a value, or default")
        session.fields = checked(session.fields | {name: _read_value(name, value.strip())})
    shown = {name: msgspec.json.encode(value).decode() for name, value in session.fields.items()}
    session.display.notice("\n".join(f"{name:20}{shown.get(name, 'default')}" for name in PARAMETER_NAMES))


async def _set(session: ChatSession, argument: str) -> None:
    """Ollama's `/set`; the word `parameter` may be left out."""
    what, _, value = argument.partition(" ")
    if fields := _SWITCHES.get(" ".join(argument.split())):
        session.fields = checked(session.fields | fields)
        session.display.notice(f"{argument} is set for the next answers")
        return
    if what == "system":
        text = value.strip()
        await _system(session, text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text)
        return
    name, _, value = (value.strip() if what == "parameter" else argument).partition(" ")
    name = PEER_NAMES.get(name, name)
    if name in _AT_THE_START:
        raise PyllmError(f"{name} cannot be changed in a chat: start it with {_AT_THE_START[name]}")
    if name not in PARAMETER_NAMES:
        text = f"`system TEXT`, `parameter NAME VALUE`, {', '.join(_SWITCHES)}"
        raise PyllmError(f"there is no /set {argument}: it takes {text}")
    await _params(session, f"{name} {value}")


async def _show(session: ChatSession, argument: str) -> None:
    """Ollama's `/show`: the part that the argument names, or all but the template."""
    shown = {"info": _model, "system": _system, "parameters": _params, "template": _template}
    if argument and argument not in shown:
        raise PyllmError(f"there is no /show {argument}: it shows {', '.join(shown)}")
    for name in [argument] if argument else ["info", "system", "parameters"]:
        await shown[name](session, "")


async def _template(session: ChatSession, argument: str) -> None:
    template = session.source.chat_template
    session.display.notice(template or "a server does not report its chat template: it is a file of the model")


async def _clear(session: ChatSession, argument: str) -> None:
    session.messages.clear()
    session.unanswered = None
    session.display.notice("the messages are forgotten; the system prompt and the parameters stay")


async def _model(session: ChatSession, argument: str) -> None:
    if argument:
        await session.source.select(argument)
    session.display.notice(session.source.description)
    if not argument and (others := [name for name in await session.source.models() if name != session.source.model]):
        session.display.notice(f"others: {', '.join(others)}")


async def _quit(session: ChatSession, argument: str) -> None:
    raise QuitChat


def _read_value(name: str, text: str) -> Any:
    """The value of a typed text, which may be JSON; None for `default`, a list for `stop`."""
    try:
        value = None if text == "default" else msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = text
    is_single = name == "stop" and value is not None and not isinstance(value, list)
    return [value if isinstance(value, str) else text] if is_single else value


def _path(argument: str, command: str) -> Path:
    if not argument:
        raise PyllmError(f"{command} needs a file")
    try:
        return Path(argument).expanduser()
    except RuntimeError:
        raise PyllmError(f"there is no home folder for {argument}") from None


SLASH_COMMANDS: Mapping[str, SlashCommand] = {
    "/help": SlashCommand("", "show this", _help),
    "/system": SlashCommand("[TEXT | -]", "show, set or remove the system prompt", _system),
    "/params": SlashCommand("[NAME VALUE]", "show or set sampling parameters; VALUE default unsets one", _params),
    "/retry": SlashCommand("", "answer the last message again", _retry),
    "/save": SlashCommand("FILE", "write the conversation as JSON", _save),
    "/load": SlashCommand("FILE", "go on with a saved conversation", _load),
    "/clear": SlashCommand("", "forget the messages", _clear),
    "/model": SlashCommand("[NAME]", "show the model, or take another one", _model),
    "/set": SlashCommand("WHAT ...", "Ollama's: system TEXT, parameter NAME VALUE, think, nothink, format json", _set),
    "/show": SlashCommand("[WHAT]", "Ollama's: info, system, parameters, or all of them; template", _show),
    "/quit": SlashCommand("", "end the chat", _quit),
    "/bye": SlashCommand("", "the same as /quit", _quit),
    "/?": SlashCommand("", "the same as /help", _help),
}
