"""Tools, calls and results in words, for chat templates that leave them out. Knows no template."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from pyllm.errors import RequestError
from pyllm.frontend.chat.parsers.tool_parsers import (
    HERMES_CLOSING,
    HERMES_OPENING,
    MISTRAL_ARGUMENTS,
    TOOL_FORMS,
    ToolForm,
)
from pyllm.frontend.text.templates import Message

_encoder = msgspec.json.Encoder()
_EXPLANATION = """\
You can call functions to help with the user's request. Each line between <tools> and </tools> describes one as JSON:
<tools>
{tools}
</tools>

To call a function, write its name and its arguments as JSON between {opening} and {closing}:
{opening}
{{"name": <the function's name>, "arguments": <its arguments, an object>}}
{closing}"""


def explained_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The conversation with the tools explained, in Hermes' format, in a system message at its beginning.

    Raises:
        RequestError: a tool cannot be written as JSON.
    """
    lines = "\n".join(map(spaced_json, tools))
    text = _EXPLANATION.format(tools=lines, opening=HERMES_OPENING, closing=HERMES_CLOSING)
    if messages and messages[0]["role"] in ("system", "developer"):
        content = messages[0]["content"]
        return [{**messages[0], "content": f"{content}\n\n{text}" if content else text}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def plain_result(message: Message) -> Message:
    """A tool's result as the user's text."""
    return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}


def plain_calls(message: Message, kind: str) -> Message:
    """A message whose calls are part of its text, in the form `kind`, or in Hermes' form if that has no writer."""
    text = _calls_writer(kind)([call["function"] for call in message["tool_calls"]])
    plain = {**message, "content": f"{message['content']}\n{text}" if message["content"] else text}
    del plain["tool_calls"]
    return plain


@cache
def _calls_writer(kind: str) -> Callable[[list[Mapping[str, Any]]], str]:
    form = TOOL_FORMS.get(kind)
    if form is not None and form.style == "list":
        return lambda functions: _listed(form, [_object(function, *form.keys) for function in functions])
    if form is not None and form.style == "mistral":
        return lambda functions: "".join([f"{form.marker}{_mistral_call(function)}" for function in functions])
    if form is not None and kind == "lfm2":
        return lambda functions: _listed(form, map(_python_call, functions))
    return lambda functions: "\n".join(
        [f"{HERMES_OPENING}\n{_object(function, 'name', 'arguments')}\n{HERMES_CLOSING}" for function in functions]
    )


def spaced_json(value: Any) -> str:
    """A tool or arguments as models have seen them: JSON with a space behind commas and colons.

    Raises:
        RequestError: the value cannot be JSON, or is nested too deeply.
    """
    try:
        return msgspec.json.format(_encoder.encode(value), indent=0).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"tools cannot be written as JSON: {error}", "tools") from None


def _listed(form: ToolForm, calls: Iterable[str]) -> str:
    return f"{form.marker}[{', '.join(calls)}]{form.closing}"


def _mistral_call(function: Mapping[str, Any]) -> str:
    return f"{function['name']}{MISTRAL_ARGUMENTS}{spaced_json(function['arguments'])}"


def _object(function: Mapping[str, Any], name: str, arguments: str) -> str:
    return spaced_json({name: function["name"], arguments: function["arguments"]})


def _python_call(function: Mapping[str, Any]) -> str:
    """A call with its values in Python's spelling, as the model writes them."""
    return f"{function['name']}({', '.join(f'{name}={value!r}' for name, value in function['arguments'].items())})"
