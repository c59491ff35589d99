"""Translates vLLM's Python keywords into settings: each is read like its flag. Starts nothing."""

import json
import os
from collections.abc import Mapping
from typing import Any, NoReturn

from pyllm.config.engine_settings import EngineConfig
from pyllm.config.option_fields import Option, options_of
from pyllm.config.option_reading import SECRETS, config_part, option_names
from pyllm.config.server_settings import ServerConfig
from pyllm.config.vllm_flags import VLLM_FLAGS, explain_flag
from pyllm.errors import ConfigError
from pyllm.flags.command_line import as_arguments, expand
from pyllm.flags.engine_arguments import announce, read_engine
from pyllm.flags.settings_flags import (
    SettingsParser,
    add_engine_settings,
    add_settings,
    add_vllm_flags,
    given_settings,
)
from pyllm.flags.vllm_settings import settle
from pyllm.parameters.arguments import is_unicode, shown

_NO_STATS = "disable_log_stats"


def engine_keywords(options: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of `LLM` or `AsyncEngine`, with those that only vLLM has translated to settings.

    A keyword that is None has its default. A notice about each keyword without an effect is logged.

    Raises:
        ConfigError: a keyword of vLLM, or its value, has no meaning here; the text gives the replacement.
    """
    known = {option.name: option for option in options_of(EngineConfig)}
    of_server = set(option_names(ServerConfig)) - set(known)
    ours: dict[str, Any] = {}
    words: list[str] = []
    refused: list[str] = []
    for name, given in options.items():
        if given is None:
            continue
        value = _plain(name, given)
        if name == _NO_STATS:  # An engine in a program prints no statistics.
            continue
        flag = name.replace("_", "-")
        refusal = "" if name in known or flag in VLLM_FLAGS else explain_flag(flag)
        if name in of_server:
            refusal = "it is of `pyllm serve`, and an engine inside a program has no server"
        if refusal:
            if value:  # A false value asks for nothing.
                refused.append(f"{name}: {refusal}")
            continue
        if name == "notices":  # from a program that parses its flags by `EngineArgs`
            announce(value)
        elif name in known and not _is_vllms_word(known[name], value):
            ours[name] = value
        elif flag in VLLM_FLAGS:
            words += _as_flag(flag, value)
        else:
            ours[name] = value
    if not words and not refused:
        return ours
    parser = _KeywordParser(prog="pyllm")
    parser.refused = refused
    add_engine_settings(parser)
    add_vllm_flags(parser)
    read = parser.read(expand(words))
    settle(read)
    announce(getattr(read, "notices", ()))
    return {**given_settings(read), **ours}


def server_settings(settings: Mapping[str, Any]) -> tuple[EngineConfig, ServerConfig]:
    """The settings of `pyllm serve` from names and values like those of a `--config` file.

    Raises:
        ConfigError: a name is unknown, or a value is wrong.
    """
    parser = _KeywordParser(prog="pyllm")
    add_settings(parser, ServerConfig)
    add_engine_settings(parser)
    add_vllm_flags(parser)
    parser.set_defaults(model_argument=None)
    read = parser.read(expand(as_arguments({name: _plain(name, value) for name, value in settings.items()})))
    engine, notices = read_engine(read)
    announce(notices)
    return engine, config_part(ServerConfig, given_settings(read, ServerConfig))


def _plain(name: str, value: Any) -> Any:
    """A value of a type that a flag can give: paths become texts, numpy's numbers Python's.

    Raises:
        ConfigError: it is neither a number, nor a valid text, nor a list or dict of such.
    """
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    elif type(value).__module__ == "numpy" and not getattr(value, "ndim", 1):
        value = value.item()
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(name, each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, each) for each in value]
    is_text = isinstance(value, str) and "\0" not in value and is_unicode(value)
    is_short = isinstance(value, int) and value.bit_length() <= 64
    if is_text or is_short or value is None or isinstance(value, float):
        return value
    shown_value = "another value" if name in SECRETS else shown(value)
    raise ConfigError(f"{name} is {shown_value}: expected a number, a text of Unicode, or a list or dict of such")


class _KeywordParser(SettingsParser):
    def error(self, message: str) -> NoReturn:
        """Raise ConfigError, where a command line's parser would exit."""
        raise ConfigError("; ".join([*self.refused, message.removeprefix("argument ")]))


def _is_vllms_word(option: Option, value: Any) -> bool:
    flag = VLLM_FLAGS.get(option.name.replace("_", "-"))
    return isinstance(value, str) and (option.form.has_auto or (flag is not None and value in flag.values))


def _as_flag(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}={value if isinstance(value, str | int | float) else json.dumps(value)}"]
