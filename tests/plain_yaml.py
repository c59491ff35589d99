"""Reads the plain part of YAML that our manifests are written in, and refuses the rest of the language."""

import json
import re
from typing import Any

_KEY = re.compile(r"([\w./-]+):(?: (.+))?")
_PLAIN = re.compile(r"[\w./=-][\w./:=-]*")

Line = tuple[int, str]  # the depth of its indentation, and what follows


def read_yaml(text: str) -> Any:
    """Mappings and lists in block style, one scalar or JSON list to a line, and lines that are comments.

    Raises:
        ValueError: anything else.
    """
    lines = [(len(line) - len(line.lstrip(" ")), line.strip()) for line in text.splitlines()]
    lines = [line for line in lines if line[1] and not line[1].startswith("#")]
    value = _block(lines, lines[0][0])
    if lines:
        raise ValueError(f"{lines[0][1]!r} is indented as nothing around it")
    return value


def _block(lines: list[Line], depth: int) -> Any:
    """What begins at this depth, taken from the front of `lines`."""
    return _list(lines, depth) if lines[0][1].startswith("- ") else _mapping(lines, depth)


def _list(lines: list[Line], depth: int) -> list[Any]:
    items: list[Any] = []
    while lines and lines[0][0] == depth and lines[0][1].startswith("- "):
        rest = lines[0][1][2:]
        if _KEY.fullmatch(rest):
            lines[0] = (depth + 2, rest)
            items.append(_mapping(lines, depth + 2))
        else:
            items.append(_scalar(rest))
            lines.pop(0)
    return items


def _mapping(lines: list[Line], depth: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    while lines and lines[0][0] == depth and not lines[0][1].startswith("- "):
        match = _KEY.fullmatch(lines.pop(0)[1])
        if match is None or match[1] in values:
            raise ValueError(f"not a key, or one that came before, after {list(values)}")
        key, value = match.groups()
        if value is None and (not lines or lines[0][0] <= depth):
            raise ValueError(f"{key} has no value")
        values[key] = _scalar(value) if value else _block(lines, lines[0][0])
    return values


def _scalar(text: str) -> Any:
    if text.startswith(("[", '"')):
        return json.loads(text)
    if text in {"true", "false"}:
        return text == "true"
    if text.isdecimal():
        return int(text)
    if not _PLAIN.fullmatch(text) or text in {"null", "yes", "no", "on", "off"}:
        raise ValueError(f"{text!r} is not plain: quote it")
    return text
