"""Settings as flags: each field of a configuration's struct is one, with vLLM's aliases and words for its values.

vLLM's flags that are no settings here are read beside them: taken with a notice, or refused. Defaults stay those of the
structs.
"""

import argparse
from collections.abc import Collection
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from pyllm.config.option_texts import parse_count
from pyllm.config.options import SIZES, WORDS, EngineConfig, option_names
from pyllm.config.vllm_flags import VLLM_FLAGS, VllmFlag, explain_flag
from pyllm.errors import ConfigError
from pyllm.flags.command_parser import CommandParser

# Fields that are repeated to give several values.
REPEATED = frozenset({"middleware"})
# What vLLM calls the context of the model, whatever it is.
_AUTO_LENGTH = frozenset({"auto", "-1"})
# vLLM's flags that are read by `pyllm/flags/vllm_settings.py`.
NESTED = (
    *("speculative-config", "structured-outputs-config", "kv-events-config", "compilation-config"),
    *("prefix-caching-hash-algo", "swap-space"),
)
# How many words a field of texts takes, if not one. `--hf-token` alone is the token of a login, which is found anyway.
_NUM_WORDS = {**dict.fromkeys(WORDS, "+"), "hf_token": "?"}
_FALSE, _TRUE = "false", "true"


class SettingsParser(CommandParser):
    """The parser of a command that takes settings: it knows vLLM's flags."""

    def explain_unknown(self, flag: str) -> str:
        """What vLLM's flag of this name is here."""
        name = flag.lstrip("-")
        text = explain_flag(name) or explain_flag(name.removeprefix("no-"))
        return f"{flag}: {text}" if text else ""

    def text_of_hidden(self, flag: str) -> str:
        """What vLLM's flag of this name does here, or that it changes nothing."""
        name = flag.lstrip("-")
        theirs = VLLM_FLAGS.get(name) or VLLM_FLAGS.get(name.removeprefix("no-"))
        if theirs is None or theirs.meaning == "refused":
            return ""
        return theirs.text if theirs.meaning == "ours" else f"taken without an effect: {theirs.text}"


def add_settings(
    parser: argparse.ArgumentParser, kind: type[msgspec.Struct], names: Collection[str] | None = None
) -> None:
    """One flag for each field, or for those of these names; the default stays None here, for the struct's to hold."""
    group = parser.add_argument_group(kind.__name__, (kind.__doc__ or "").strip().partition("\n")[0])
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        if names is not None and field.name not in names:
            continue
        hint, help_text = hints[field.name], ""
        while get_origin(hint) is Annotated:
            hint, *metadata = get_args(hint)
            help_text = next((meta.description for meta in metadata if meta.description), help_text)
        default = field.default if field.default_factory is msgspec.NODEFAULT else None
        help_text += "" if default in (None, "", (), ("*",)) else f" (default: {default})"
        name = field.name.replace("_", "-")
        theirs = VLLM_FLAGS.get(name)
        group.add_argument(
            *(theirs.aliases if theirs else ()),
            f"--{name}",
            help=help_text,
            **_reading(field.name, hint, theirs),
        )


def add_engine_settings(parser: argparse.ArgumentParser) -> None:
    """All settings of an engine."""
    for field in msgspec.structs.fields(EngineConfig):
        add_settings(parser, field.type)


def add_vllm_flags(parser: argparse.ArgumentParser) -> None:
    """vLLM's flags that are not settings of their own name here; they are not in the help."""
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
                nargs=0 if flag.is_boolean else "?" if not flag.taken and flag.meaning == "refused" else None,
                dest="notices",
                metavar="VALUE",
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
            )


def given_settings(options: argparse.Namespace, kind: type[Any] = EngineConfig) -> dict[str, Any]:
    """The settings of a part that the arguments have."""
    found = {name: getattr(options, name, None) for name in option_names(kind)}
    return {name: value for name, value in found.items() if value is not None}


def _reading(name: str, hint: Any, theirs: VllmFlag | None) -> dict[str, Any]:
    """How the flag of a field is read: the arguments of `add_argument`."""
    words = dict(theirs.values) if theirs else {}
    if hint is bool or bool in get_args(hint):
        return {"action": argparse.BooleanOptionalAction, "default": None}
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint), "type": lambda text: words.get(text, text)}
    if name in SIZES:
        return {"metavar": "SIZE"}
    if hint is str or get_origin(hint) in {dict, tuple}:
        several = {"action": _Append} if name in REPEATED else {"nargs": _NUM_WORDS.get(name)}
        return {"type": lambda text: words.get(text, text), "metavar": _metavar(name), **several}
    if hint is float:
        return {"type": _number, "metavar": "N"}
    return {"type": _length if name == "max_model_len" else _count, "metavar": "N"}


def _metavar(name: str) -> str:
    if name.endswith(("_file", "certfile", "keyfile", "_certs")):
        return "FILE"
    return "FOLDER" if name.endswith("_dir") else "TEXT"


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


class _Append(argparse.Action):
    """Another value at each time; those of a file, in a tuple by then, are replaced."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        del parser, option_string
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [*(before if isinstance(before, list) else ()), values])


class _Foreign(argparse.Action):
    """A flag of vLLM's: taken with a notice, or refused."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        given = str(option_string)
        name = given.removeprefix("--").removeprefix("no-") if self.nargs == 0 else self.option_strings[-1][2:]
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
        parser.error(f"{given}{shown}: {flag.else_text or flag.text}")


def _is_all_zero(text: str) -> bool:
    try:
        limits = msgspec.json.decode(text, type=dict[str, int])
    except msgspec.DecodeError:
        limits = dict.fromkeys(text.split(","), 1) if not all(part.endswith("=0") for part in text.split(",")) else {}
    return not any(limits.values())
