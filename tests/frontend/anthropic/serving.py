"""What the tests of `/v1/messages` share: a model that thinks and calls, its texts, and the fold of a stream."""

import json
from typing import Any

import msgspec

from tests.client.fake_core import MODEL
from tests.frontend.serving import TEMPLATE

ROOMY = msgspec.structs.replace(MODEL, max_model_len=10_000, kv_cache_tokens=10_000)
HERMES = "{% if tools %}{{ tools | tojson }} in <tool_call>{% endif %}" + TEMPLATE
THINKING = HERMES.replace("{{ message.content }}", "{% if enable_thinking %}<think>{% endif %}{{ message.content }}")
USER = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "The weather.", "input_schema": SCHEMA}
CLOCK = {"name": "clock", "input_schema": {"type": "object"}}
CALLS = (
    'So:\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)
THOUGHT = "<think>\nHm 🙂.\n</think>\n\n" + CALLS


def named_events(text: str) -> list[dict[str, Any]]:
    """The JSON of a stream's events, each of which says its type twice."""
    *parts, end = text.split("\n\n")
    assert end == ""
    events = []
    for part in parts:
        name, _, data = part.partition("\n")
        events.append(msgspec.json.decode(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream adds up to; checks the order of its events."""
    start, ping, *events = events
    assert (start["type"], ping) == ("message_start", {"type": "ping"})
    message: dict[str, Any] = start["message"]
    assert message["content"] == []
    blocks: list[dict[str, Any]] = message["content"]
    is_open = False
    for event in events[:-2]:
        match event["type"]:
            case "content_block_start":
                assert (is_open, event["index"]) == (False, len(blocks))
                is_open = True
                blocks.append({**event["content_block"], "json": ""})
            case "content_block_delta":
                assert (is_open, event["index"]) == (True, len(blocks) - 1)
                _add(blocks[-1], event["delta"])
            case "content_block_stop":
                assert (is_open, event["index"]) == (True, len(blocks) - 1)
                is_open = False
            case other:
                raise AssertionError(other)
    assert not is_open
    for block in blocks:
        text = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = _object(text)
    end, stop = events[-2:]
    assert (end["type"], stop) == ("message_delta", {"type": "message_stop"})
    return {**message, **end["delta"], "usage": end["usage"]}


def _add(block: dict[str, Any], delta: dict[str, Any]) -> None:
    names = {"text_delta": ("text", "text"), "thinking_delta": ("thinking", "thinking")}
    field, mine = names.get(delta["type"], ("partial_json", "json"))
    assert mine in block
    block[mine] += delta[field]


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"INVALID_JSON": text}
