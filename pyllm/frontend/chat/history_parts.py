"""The model's text for parts of a history and tools' results that are not plain text, in all APIs.

A refusal would end the conversation, as every later request has the part in its history. So nothing is refused here.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

TEXT_PARTS = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text"})
# The texts in place of a part that has no text, by its type.
_NOTES = {
    kind: f"[{thing} was here. {things} are not supported yet.]"
    for thing, things, kinds in (
        ("An image", "Images", ("image", "image_url", "input_image", "computer_screenshot", "image_generation_call")),
        ("A document", "Documents", ("document", "file", "input_file")),
        ("A recording", "Recordings", ("audio", "audio_url", "input_audio")),
        ("A video", "Videos", ("video", "video_url", "input_video")),
        ("A resource", "Resources", ("resource",)),
    )
    for kind in kinds
}
# The fields that hold text or parts, and the fields that name its origin.
_TEXTS = ("text", "refusal", "transcript", "thinking", "reasoning", "summary", "content", "resource", "audio")
_ORIGINS = ("title", "source")
_MARKS = ("type", "cache_control")
_MAX_DEPTH = 8  # Nothing that clients send is nested deeper.


class HistoryPart(Struct, kw_only=True, omit_defaults=True):
    """A part of a message: its type, and the fields in which some API or program has its text."""

    type: str
    text: str | None = None
    refusal: str | None = None
    thinking: Any = None
    reasoning: Any = None
    summary: Any = None
    content: Any = None
    title: Any = None
    context: Any = None
    source: Any = None
    resource: Any = None
    json: Any = None
    value: Any = None


def part_text(part: HistoryPart | Mapping[str, Any], depth: int = _MAX_DEPTH) -> str:
    """The text of a part; without a text, a note that it was here, or its fields as JSON."""
    given = msgspec.to_builtins(part) if isinstance(part, HistoryPart) else part
    kind = str(given["type"])
    if kind in TEXT_PARTS:
        return _text_in(given.get("text"), depth)
    if kind == "document" and (document := document_text(given)) is not None:
        return document
    if texts := [text for name in _TEXTS if (text := _text_in(given.get(name), depth))]:
        origins = [origin for name in _ORIGINS if isinstance(origin := given.get(name), str) and origin]
        return "\n".join([*origins, *texts])
    if kind in _NOTES:
        return _NOTES[kind]
    others = {name: value for name, value in given.items() if value is not None and name not in _MARKS}
    return compact_json(others) if others else f"[A part of type {kind:.80} was here. It is not supported yet.]"


def document_text(part: HistoryPart | Mapping[str, Any]) -> str | None:
    """Title, context and text of a document of Anthropic's whose source is text, or parts of text; else None."""
    given = msgspec.to_builtins(part) if isinstance(part, HistoryPart) else part
    source = given.get("source")
    if not isinstance(source, dict):
        return None
    text = {"text": source.get("data"), "content": source.get("content")}.get(str(source.get("type")))
    if isinstance(text, list):
        texts = [part.get("text") for part in text if isinstance(part, dict) and part.get("type") == "text"]
        plain = [each for each in texts if isinstance(each, str)]
        text = "\n".join(plain) if len(plain) == len(text) else None
    if not isinstance(text, str):
        return None
    about = [each for name in ("title", "context") if isinstance(each := given.get(name), str) and each]
    return "\n".join([*about, text])


def result_text(result: Any, depth: int = _MAX_DEPTH) -> str:
    """The text of a tool's result: a text, parts, one a line, or any other JSON."""
    if isinstance(result, str):
        return result
    if isinstance(result, HistoryPart) or (depth and isinstance(result, dict) and _is_part(result)):
        return part_text(result, depth - 1)
    if depth and isinstance(result, list) and all(map(_is_part, result)):
        return "\n".join([result_text(part, depth - 1) for part in result])
    return "" if result is None else compact_json(result)


def compact_json(value: Any) -> str:
    """A value of a body as JSON."""
    try:
        return msgspec.json.encode(value).decode()
    except RecursionError:
        return "[A value was here. It is nested too deeply.]"


def _is_part(value: Any) -> bool:
    return isinstance(value, str | HistoryPart) or (isinstance(value, dict) and isinstance(value.get("type"), str))


def _text_in(value: Any, depth: int) -> str:
    """The text of a field; an object's own text, if it has one."""
    if isinstance(value, dict):
        value = value.get("text") or value.get("transcript")
    if isinstance(value, list) and depth > 0:
        return result_text(value, depth - 1)
    return value if isinstance(value, str) else ""
