"""Normalises a command line in vLLM's style: underscores, dotted settings, `-O3`, `--config`.

Knows no flag by name but `--config` and `-O`. Sources: vLLM's `FlexibleArgumentParser` and its documentation.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pyllm.errors import ConfigError

_LONG = re.compile(r"--[A-Za-z]")
_DOTTED = re.compile(r"(--?[A-Za-z][\w-]*)\.([\w.+-]+)(?:=(.*))?", re.DOTALL)
_LEVEL = re.compile(r"-O(?:\.?(\d))")


def expand(arguments: Sequence[str]) -> list[str]:
    """The arguments with hyphens in flags' names, and nested settings (`--x.a.b 1`, `--x.list+ 1`) as one JSON each.

    Arguments after `--` are unchanged.

    Raises:
        ConfigError: a nested setting has no value, or the setting around it is no object.
    """
    words = list(arguments)
    rest = words[words.index("--") :] if "--" in words else []
    words = [_hyphenated(word) for word in words[: len(words) - len(rest)]]
    plain: list[str] = []
    nested: dict[str, dict[str, Any]] = {}
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if (level := _LEVEL.fullmatch(word)) is not None:
            plain.append(f"-O={level[1]}")
        elif (match := _DOTTED.fullmatch(word)) is not None:
            flag, path, value = match.groups()
            if value is None:
                if index == len(words):
                    raise ConfigError(f"{word} needs a value")
                value = words[index]
                index += 1
            _put(nested.setdefault(flag, {}), path.split("."), _value(value), f"{flag}.{path}")
        else:
            plain.append(word)
    for flag, values in nested.items():
        plain = _without(plain, flag, values)
    return [*plain, *rest]


def split_config(arguments: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """The file of `--config`, its settings as arguments, and the other arguments; the first two may be empty.

    Raises:
        ConfigError: the file is named twice, cannot be read, or is not a mapping of flags to values.
    """
    words, files = list(arguments), []
    while (found := next((at for at, word in enumerate(words) if word.split("=")[0] == "--config"), None)) is not None:
        flag, has_value, value = words[found].partition("=")
        if not has_value:
            if found + 1 == len(words):
                raise ConfigError(f"{flag} needs a file")
            value = words.pop(found + 1)
        words.pop(found)
        files.append(value)
    if len(files) > 1:
        raise ConfigError(f"--config takes one file, got {' and '.join(files)}")
    if not files:
        return "", [], words
    return files[0], _config_arguments(Path(files[0])), words


def as_arguments(settings: Mapping[str, Any]) -> list[str]:
    """Arguments from flags and values of a `--config` file.

    Raises:
        ValueError: a value refers to itself.
    """
    return [word for name, value in settings.items() for word in _setting("--" + name.replace("_", "-"), value)]


def _config_arguments(path: Path) -> list[str]:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        _check_keys(path, yaml.compose(text, yaml.SafeLoader))
        settings = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --config {path}: {getattr(error, 'strerror', None) or error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {path} is not YAML: {yaml_problem(error)}") from None
    if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
        raise ConfigError(f"--config {path} must map flags to values, as in `max-model-len: 4096`")
    if "config" in settings:
        raise ConfigError(f"--config {path} names another file, which is not read")
    try:
        return as_arguments(settings)
    except ValueError:
        raise ConfigError(f"--config {path} has a value that refers to itself") from None


def yaml_problem(error: Exception) -> str:
    """The problem in a YAML text and its place, without the line itself, which may hold a password."""
    import yaml

    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).replace(' in "<unicode string>"', "").split())
    problem = " ".join(part for part in (error.context, error.problem) if part)
    return f"{problem}, in line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}"


def _check_keys(path: Path, node: Any) -> None:
    """Refuse a flag that the file names twice, be it once with hyphens and once with underscores."""
    lines: dict[str, int] = {}
    for key, _ in node.value if node is not None and node.id == "mapping" else ():
        name, line = str(key.value).replace("_", "-"), key.start_mark.line + 1
        if name in lines:
            raise ConfigError(f"--config {path} has {name} twice, in lines {lines[name]} and {line}: leave one out")
        lines[name] = line


def _setting(flag: str, value: Any) -> list[str]:
    """One entry of the file as arguments. None counts as absent."""
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    if isinstance(value, list) and not any(isinstance(each, list | Mapping) for each in value):
        return [flag, *map(str, value)]
    return [f"{flag}={json.dumps(value, default=str) if isinstance(value, list | Mapping) else value}"]


def _hyphenated(word: str) -> str:
    if not _LONG.match(word):
        return word
    name, equals, value = word.partition("=")
    top, dot, path = name.partition(".")
    return top.replace("_", "-") + dot + path + equals + value


def _value(text: str) -> Any:
    """The decoded text where it is JSON, else the text itself."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _put(settings: dict[str, Any], path: Sequence[str], value: Any, word: str) -> None:
    *parents, name = path
    for parent in parents:
        settings = settings.setdefault(parent, {})
        if not isinstance(settings, dict):
            raise ConfigError(f"{word}: {parent} has a value of its own already")
    if name.endswith("+"):
        several = value.split(",") if isinstance(value, str) else [value]
        values = settings.setdefault(name[:-1], [])
        if not isinstance(values, list):
            raise ConfigError(f"{word}: {name[:-1]} is no list")
        values += map(_value, several) if isinstance(value, str) else several
    else:
        settings[name] = value


def _without(words: list[str], flag: str, values: dict[str, Any]) -> list[str]:
    """The arguments with `values` as the flag's JSON, merged over the JSON that the flag has there."""
    for at, word in enumerate(words):
        name, equals, text = word.partition("=")
        if name != flag:
            continue
        if not equals and at + 1 < len(words):
            text = words[at + 1]
        base = _value(text)
        if not isinstance(base, dict):
            raise ConfigError(f"{flag} has a value and settings of its own, too: give it a JSON object")
        merged = [f"{flag}={json.dumps(base | values)}"]
        return [*words[:at], *merged, *words[at + (1 if equals else 2) :]]
    return [*words, f"{flag}={json.dumps(values)}"]
