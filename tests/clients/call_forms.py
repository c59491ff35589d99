"""A scripted answer with calls in Hermes' form, as models of other families write it."""

import json
import re
from typing import Any

_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


def in_form(answer: str, kind: str) -> str:
    """The same answer with its calls in the form of a `--tool-call-parser`.

    Raises:
        KeyError: the answer has calls, and there is no writer of this form.
    """
    if kind == "openai":
        return _in_channels(answer)

    def written(found: re.Match[str]) -> str:
        call = json.loads(found[1])
        return _WRITERS[kind](call["name"], call["arguments"])

    text = _CALL.sub(written, answer)
    # Llama's calls are an answer of their own.
    return text.partition("\n")[2] if kind == "llama3_json" and text != answer and not text.startswith("{") else text


def _hermes(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _qwen(name: str, arguments: dict[str, Any]) -> str:
    values = "".join(f"<parameter={key}>\n{_text(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def _glm(name: str, arguments: dict[str, Any]) -> str:
    values = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{_text(value)}</arg_value>\n" for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{values}</tool_call>"


def _mistral(name: str, arguments: dict[str, Any]) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}"


def _llama(name: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"name": name, "parameters": arguments})


def _gemma(name: str, arguments: dict[str, Any]) -> str:
    values = (f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value) for value in arguments.values())
    pairs = ",".join(f"{key}:{value}" for key, value in zip(arguments, values, strict=True))
    return f"<|tool_call>call:{name}{{{pairs}}}<tool_call|>"


def _in_channels(answer: str) -> str:
    """Harmony's: what the prompt has begun is the assistant's turn."""
    text, *calls = _CALL.split(answer)
    messages = []
    if calls:
        call = json.loads(calls[0])
        if text.strip():
            messages.append(f"<|channel|>commentary<|message|>{text.strip()}<|end|><|start|>assistant")
        target = f"<|channel|>commentary to=functions.{call['name']} <|constrain|>json<|message|>"
        messages.append(f"{target}{json.dumps(call['arguments'])}<|call|>")
    else:
        messages.append(f"<|channel|>final<|message|>{text}")
    return "".join(messages)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


_WRITERS = {
    "hermes": _hermes,
    "granite4": _hermes,
    "qwen3_coder": _qwen,
    "glm45": _glm,
    "mistral": _mistral,
    "llama3_json": _llama,
    "gemma4": _gemma,
}
