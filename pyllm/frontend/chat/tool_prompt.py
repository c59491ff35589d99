"""Tools, calls and results in words, for chat templates that leave them out. Knows no template."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pyllm.errors import RequestError
from pyllm.frontend.chat.parsers.tool_forms import HERMES_CLOSING, HERMES_OPENING, TOOL_FORMS
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
    """The same conversation with the tools explained, in Hermes' format, in the system message, which is first.

    Raises:
        RequestError: a tool cannot be written as JSON.
    """
    lines = "\n".join(map(json_text, tools))
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
    is_list = form is not None and form.style == "list"
    name, arguments = form.keys if form is not None and is_list else ("name", "arguments")
    functions = [call["function"] for call in message["tool_calls"]]
    calls = [json_text({name: function["name"], arguments: function["arguments"]}) for function in functions]
    if form is not None and is_list:
        text = f"{form.marker}[{', '.join(calls)}]{form.closing}"
    else:
        text = "\n".join([f"{HERMES_OPENING}\n{call}\n{HERMES_CLOSING}" for call in calls])
    plain = dict(message)
    del plain["tool_calls"]
    plain["content"] = f"{message['content']}\n{text}" if message["content"] else text
    return plain


def json_text(value: Any) -> str:
    """A tool or arguments as models have seen them: JSON with a space behind commas and colons.

    Raises:
        RequestError: the value is none that JSON has, or nested too deeply.
    """
    try:
        return msgspec.json.format(_encoder.encode(value), indent=0).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"tools cannot be written as JSON: {error}", "tools") from None
