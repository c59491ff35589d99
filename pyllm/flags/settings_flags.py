"""Settings as flags: one for each field of a configuration's struct, with vLLM's aliases and values.

vLLM's flags that are no settings here are accepted with a notice, or refused. The structs define the defaults.
"""

import argparse
from collections.abc import Collection
from typing import Any, Literal, get_args, get_origin

import msgspec

from pyllm.config.engine_settings import EngineConfig
from pyllm.config.option_fields import ConfigPart, Option, options_of
from pyllm.config.option_reading import option_names
from pyllm.config.option_texts import parse_count
from pyllm.config.peer_flags import explain_peer_flag
from pyllm.config.vllm_flags import VLLM_FLAGS, VllmFlag, explain_flag
from pyllm.errors import ConfigError
from pyllm.flags.command_parser import CommandParser
from pyllm.flags.vllm_settings import NESTED

# vLLM's values for the model's own context length.
_AUTO_LENGTH = frozenset({"auto", "-1"})
_FALSE, _TRUE = "false", "true"


class SettingsParser(CommandParser):
    """The parser of a command that takes settings: it knows vLLM's flags."""

    def explain_unknown(self, flag: str) -> str:
        """The explanation of an unknown flag that vLLM, llama.cpp, Ollama, SGLang or TGI has; empty for others."""
        name = flag.lstrip("-")
        text = explain_flag(name) or explain_flag(name.removeprefix("no-")) or explain_peer_flag(flag, self.flags())
        return f"{flag}: {text}" if text else ""

    def text_of_hidden(self, flag: str) -> str:
        """Help on a flag of vLLM that is accepted here; empty for other flags."""
        name = flag.lstrip("-")
        theirs = VLLM_FLAGS.get(name) or VLLM_FLAGS.get(name.removeprefix("no-"))
        if theirs is None or theirs.meaning == "refused":
            return ""
        return theirs.text if theirs.meaning == "ours" else f"taken without an effect: {theirs.text}"


def add_settings(parser: argparse.ArgumentParser, kind: type[ConfigPart], names: Collection[str] | None = None) -> None:
    """Add a flag for each field, or for those in `names`. Flags default to None, so that the struct's default holds."""
    group = parser.add_argument_group(kind.__name__, (kind.__doc__ or "").strip().partition("\n")[0])
    for option in options_of(kind):
        if names is not None and option.name not in names:
            continue
        default = "" if option.default in (None, "", (), ("*",)) else f" (default: {option.default})"
        name = option.name.replace("_", "-")
        theirs = VLLM_FLAGS.get(name)
        group.add_argument(
            *(theirs.aliases if theirs else ()),
            f"--{name}",
            dest=option.name,
            help=option.help + default,
            **_reading(option, theirs),
        )


def add_engine_settings(parser: argparse.ArgumentParser) -> None:
    """Add the flags of all settings of an engine."""
    for field in msgspec.structs.fields(EngineConfig):
        add_settings(parser, field.type)


def add_vllm_flags(parser: argparse.ArgumentParser) -> None:
    """Add vLLM's flags that are no settings here; the help hides them."""
    known = set(parser._option_string_actions)
    for flag in VLLM_FLAGS.values():
        if flag.flag in known or flag.name == "config":
            continue
        names = (*flag.aliases, flag.flag, *([f"--no-{flag.name}"] if flag.is_boolean else []))
        if flag.name in NESTED:
            parser.add_argument(*names, dest=flag.name, metavar="VALUE", help=argparse.SUPPRESS)
        elif flag.meaning != "ours":
            parser.add_argument(
                *names,
                action=_Foreign,
                nargs=_num_words(flag),
                dest="notices",
                metavar="VALUE",
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
            )


def given_settings(options: argparse.Namespace, kind: type[Any] = EngineConfig) -> dict[str, Any]:
    """The settings of a part that the arguments set."""
    found = {name: getattr(options, name, None) for name in option_names(kind)}
    return {name: value for name, value in found.items() if value is not None}


def _reading(option: Option, theirs: VllmFlag | None) -> dict[str, Any]:
    """Arguments of `add_argument` for an option's flag."""
    words = dict(theirs.values) if theirs else {}
    hint, form = option.type, option.form
    if hint is bool or bool in get_args(hint):
        return {"action": argparse.BooleanOptionalAction, "default": None}
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint), "type": lambda text: words.get(text, text)}
    if form.size_unit:
        return {"metavar": "SIZE"}
    if hint is str or get_origin(hint) in {dict, tuple} or form.parse is not None:
        several = {"action": _Append} if form.is_repeated else {"nargs": form.num_words}
        return {"type": lambda text: words.get(text, text), "metavar": form.metavar, **several}
    if hint is float:
        return {"type": _number, "metavar": "N"}
    return {"type": _length if form.has_auto else _count, "metavar": "N"}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"needs a number such as 0.5, got {text!r:.80}") from None


def _count(text: str) -> int:
    try:
        return parse_count(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _length(text: str) -> int | None:
    return None if text in _AUTO_LENGTH else _count(text)


def _num_words(flag: VllmFlag) -> int | str | None:
    """`nargs` of a flag of vLLM that is no setting here; a refused one may stand without a value."""
    if flag.is_boolean or flag.is_list:
        return 0 if flag.is_boolean else "+"
    return "?" if flag.meaning == "refused" and not flag.taken else None


class _Append(argparse.Action):
    """Appends the value of each use of the flag; values from a config file, which are a tuple, are replaced."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        del parser, option_string
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [*(before if isinstance(before, list) else ()), values])


class _Foreign(argparse.Action):
    """A flag of vLLM that is accepted with a notice, or refused."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        given = str(option_string)
        name = self.option_strings[-1].removeprefix("--")  # the long one, whichever was given
        if self.nargs == 0:
            name = name.removeprefix("no-")
        flag = VLLM_FLAGS[name]
        value = str(values)
        if self.nargs == 0:
            value = _FALSE if given.startswith("--no-") else _TRUE
        elif name == "limit-mm-per-prompt" and _is_all_zero(value):
            return
        if value in flag.taken or (flag.meaning == "always" and not flag.taken):
            if flag.meaning == "always":
                namespace.notices = [*getattr(namespace, "notices", ()), f"{given}: {flag.text}"]
            return
        shown = f" {value}" if flag.taken and self.nargs != 0 else ""
        refusal = f"{given}{shown}: {flag.else_text or flag.text}"
        if isinstance(parser, CommandParser):
            parser.refused.append(refusal)
        else:
            parser.error(refusal)


def _is_all_zero(text: str) -> bool:
    try:
        limits = msgspec.json.decode(text, type=dict[str, int])
    except msgspec.DecodeError:
        limits = dict.fromkeys(text.split(","), 1) if not all(part.endswith("=0") for part in text.split(",")) else {}
    return not any(limits.values())
