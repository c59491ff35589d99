"""Tools, calls and results in words, for chat templates that leave them out. Knows no template."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyllm.frontend.chat.parsers.tool_forms import HERMES_CLOSING, HERMES_OPENING, TOOL_FORMS
from pyllm.frontend.text.templates import Message

_TO_JSON = json.JSONEncoder(ensure_ascii=False).encode
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
    """The same conversation with the tools explained, in Hermes' format, in the system message, which is first.

    Raises:
        ValueError, RecursionError: a tool cannot be written as JSON.
    """
    lines = "\n".join(_TO_JSON(tool) for tool in tools)
    text = _EXPLANATION.format(tools=lines, opening=HERMES_OPENING, closing=HERMES_CLOSING)
    if messages and messages[0]["role"] in ("system", "developer"):
        content = messages[0]["content"]
        return [{**messages[0], "content": f"{content}\n\n{text}" if content else text}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def plain_result(message: Message) -> Message:
    """A tool's result as the user's text."""
    return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}


def plain_calls(message: Message, kind: str) -> Message:
    """A message whose calls are part of its text: a list of JSON behind the form's marker, or Hermes' format."""
    form = TOOL_FORMS.get(kind)
    functions = [call["function"] for call in message["tool_calls"]]
    if form is not None and form.style == "list":
        calls = [_call(function, form.keys) for function in functions]
        text = f"{form.marker}[{', '.join(calls)}]{form.closing}"
    else:
        calls = [_call(function, ("name", "arguments")) for function in functions]
        text = "\n".join(f"{HERMES_OPENING}\n{call}\n{HERMES_CLOSING}" for call in calls)
    plain = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**plain, "content": f"{message['content']}\n{text}" if message["content"] else text}


def _call(function: Mapping[str, Any], keys: tuple[str, str]) -> str:
    arguments = function["arguments"]
    if isinstance(arguments, str):  # As OpenAI's messages have them; the model writes an object.
        with contextlib.suppress(ValueError):
            arguments = json.loads(arguments)
    return _TO_JSON({keys[0]: function["name"], keys[1]: arguments})
