"""Explains tools to the model in words, in Hermes' format, if its chat template leaves them out. Knows no template."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyllm.errors import RequestError
from pyllm.frontend.chat.parsers.tool_forms import HERMES_CLOSING, HERMES_OPENING
from pyllm.frontend.text.templates import ChatTemplate, Message

_EXPLANATION = """\
You can call functions to help with the user's request. Each line between <tools> and </tools> describes one as JSON:
<tools>
{tools}
</tools>

To call a function, write its name and its arguments as JSON between {opening} and {closing}:
{opening}
{{"name": <the function's name>, "arguments": <its arguments, an object>}}
{closing}"""


def with_tools(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, template: ChatTemplate | None
) -> Sequence[Message]:
    """A program's messages, with the tools explained in them if the template does not show them itself.

    Raises:
        RequestError: a call in the messages has no name or arguments, or something is not to be written as JSON.
    """
    if not tools or template is None or "tools" in template.variables:
        return messages
    try:
        return explained(messages, tools)
    except (LookupError, TypeError, AttributeError) as error:
        text = f"a message of a tool or with tool_calls is not in OpenAI's form: {type(error).__name__}: {error}"
        raise RequestError(text, "messages") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"tools cannot be written as JSON: {error}", "tools") from None


def explained(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The same conversation in messages of text alone.

    The tools are added to the system message, which is first; calls are part of the assistant's text, and what tools
    answered is the user's.
    """
    plain = [_plain(message) for message in messages]
    if not tools:
        return plain
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = _EXPLANATION.format(tools=lines, opening=HERMES_OPENING, closing=HERMES_CLOSING)
    if plain and plain[0]["role"] in ("system", "developer"):
        content = plain[0]["content"]
        return [{**plain[0], "content": f"{content}\n\n{text}" if content else text}, *plain[1:]]
    return [{"role": "system", "content": text}, *plain]


def _plain(message: Message) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = [_call(call["function"]) for call in message.get("tool_calls") or ()]
    if not calls:
        return message
    content = "\n".join([message["content"], *calls] if message["content"] else calls)
    return {"role": message["role"], "content": content}


def _call(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    if isinstance(arguments, str):  # As OpenAI's messages have them; the model writes an object.
        with contextlib.suppress(ValueError):
            arguments = json.loads(arguments)
    call = {"name": function["name"], "arguments": arguments}
    return f"{HERMES_OPENING}\n{json.dumps(call, ensure_ascii=False)}\n{HERMES_CLOSING}"
