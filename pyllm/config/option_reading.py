"""Builds settings from keywords and flags: checked structs from flat names. Opens no file, resolves no `auto`."""

import re
from typing import Any, TypeVar

import msgspec

from pyllm.config.engine_settings import EngineConfig
from pyllm.config.nearest_name import nearest_name
from pyllm.config.option_fields import ConfigPart, options_of, read_value
from pyllm.config.server_settings import HeadlessConfig, ServerConfig
from pyllm.errors import ConfigError

Part = TypeVar("Part", bound=ConfigPart)

# Options whose values no message shows.
SECRETS = frozenset(
    option.name
    for kind in (EngineConfig, ServerConfig, HeadlessConfig)
    for option in options_of(kind)
    if option.form.is_secret
)


def engine_config(options: dict[str, Any]) -> EngineConfig:
    """Build an `EngineConfig` from flat names, as keywords and flags give them; None means the default.

    Raises:
        ConfigError: an unknown name (with the nearest known one), or a value out of its range.
    """
    remaining = dict(options)
    parts = {}
    for field in msgspec.structs.fields(EngineConfig):
        names = option_names(field.type)
        given = {name: remaining.pop(name) for name in names if name in remaining}
        parts[field.name] = config_part(field.type, {name: each for name, each in given.items() if each is not None})
    if remaining:
        raise ConfigError("; ".join(map(_unknown_option, sorted(remaining))))
    return EngineConfig(**parts)


def config_part(kind: type[Part], options: dict[str, Any]) -> Part:
    """Build one part from its keywords, texts such as `64MiB` included; raises ConfigError as `engine_config` does."""
    known = {option.name: option for option in options_of(kind)}
    read = {name: read_value(known[name], value) if name in known else value for name, value in options.items()}
    try:
        return msgspec.convert(read, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), options)) from None


def option_names(kind: type[ConfigPart] = EngineConfig) -> list[str]:
    """Every flat option of a part, or of the whole engine, in the order of its definition."""
    return [option.name for option in options_of(kind)]


def _explain(text: str, options: dict[str, Any]) -> str:
    """The error message of a value, with name and value in front: `max_num_seqs is -1: expected int >= 0`."""
    match = re.fullmatch(r"(.*) - at `\$\.(\w+)(.*)`", text)
    if match is None:
        return text
    expected, name, place = match.groups()
    value = "" if name in SECRETS else f" is {options.get(name)!r:.80}"
    return f"{name}{place}{value}: {expected[:1].lower()}{expected[1:].replace('`', '')}"


def _unknown_option(name: str) -> str:
    near = nearest_name(name, option_names())
    return f"unknown option {name!r}" + (f"; did you mean {near!r}?" if near else "")
