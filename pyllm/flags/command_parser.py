"""The parser of a command: errors in one line with exit code 2, the nearest name, help by topic. Knows no command.

Help is written by rich-argparse, which is imported only for help.
"""

import argparse
import copy
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from pyllm.config.nearest_name import nearest_name

# Metavars that stand for paths, which a shell can complete.
PATHS = frozenset({"FILE", "FOLDER", "MODEL"})
USAGE_ERROR = 2

_ARGUMENT = "argument "


def nearest(name: str, known: Iterable[str]) -> str:
    """`: did you mean X?` for a name that is close to a known one; else empty."""
    near = nearest_name(name, known)
    return f": did you mean {near}?" if near else ""


class CommandParser(argparse.ArgumentParser):
    """Reads one command's arguments.

    `common` names the options that the short help shows; without them it shows all. `explain_unknown` may explain an
    unknown flag. `source` names the origin of the arguments in errors, if that is not the command line.
    """

    def __init__(self, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)  # A misspelt flag must fail, not be guessed, such as `--max-num-seq`.
        options["add_help"] = False  # The --help below takes a topic.
        super().__init__(**options)
        self.common: Sequence[str] = ()
        self.source = ""
        self.refused: list[str] = []  # Errors of actions about known flags, reported together.
        self.add_argument(
            *("-h", "--help"),
            action=_Help,
            nargs="?",
            const="",
            metavar="TOPIC",
            help="show this help",
        )

    def shorten_help(self, common: Sequence[str]) -> None:
        """Let `--help` show only these options, given by their long names, and `--help=TOPIC` the others."""
        self.common = (*common, "help")
        self._option_string_actions[
            "--help"
        ].help = "more: --help=all (every flag), =listgroup (the groups), =GROUP, =FLAG, or =WORD (every flag with it)"

    def read(self, arguments: Sequence[str], options: argparse.Namespace | None = None) -> argparse.Namespace:
        """Parse arguments into `options`, whose values stay where no argument sets them. Exits with 2 on errors."""
        found, unknown = self.parse_known_args(arguments, options or argparse.Namespace())
        chosen = self._chosen(found)
        if unknown or chosen.refused:
            chosen.error(chosen.explain(unknown) if unknown else chosen.refused.pop())
        return found

    def explain(self, unknown: Sequence[str]) -> str:
        """The error message for unknown arguments: it names all flags among them, else the first argument."""
        unknown = [text for text in unknown if text != "--"]
        names = dict.fromkeys(text.partition("=")[0] for text in unknown if text.startswith("-"))
        # A name that looks like a number is the value of an unknown flag before it.
        flags = [name for name in names if not name[1:2].isdigit()] or list(names)
        if not flags:
            return f"unexpected argument {unknown[0]!r}; {self.prog} --help says what it takes"
        reasons = {name: self.explain_unknown(name) for name in flags}
        texts = [reason or f"unknown flag {name}{self._nearest_flag(name)}" for name, reason in reasons.items()]
        where = "" if all(reasons.values()) else f" ({self.prog} --help=all lists all flags)"
        return "; ".join(texts) + where

    def _nearest_flag(self, name: str) -> str:
        # Prefer flags in the help: a misspelt flag is rarely a hidden one.
        return nearest(name, self.flags(is_shown=True)) or nearest(name, self.flags())

    def explain_unknown(self, flag: str) -> str:
        """The explanation of an unknown flag by a subclass; empty for none."""
        del flag
        return ""

    def text_of_hidden(self, flag: str) -> str:
        """The help of a subclass on an accepted flag that the help hides; empty for none."""
        del flag
        return ""

    def flags(self, is_shown: bool = False) -> list[str]:
        """The long names of all options, or of those in the help; options of subcommands included."""
        options = self._option_string_actions.items()
        own = [
            name
            for name, action in options
            if name.startswith("--") and not (is_shown and action.help is argparse.SUPPRESS)
        ]
        return own + [name for parser in self.commands().values() for name in parser.flags(is_shown)]

    def commands(self) -> "dict[str, CommandParser]":
        """The parsers of subcommands, by name."""
        return {name: parser for action in self._actions for name, parser in _parsers(action).items()}

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with 2."""
        text = message.removeprefix(_ARGUMENT).replace("ignored explicit argument", "takes no value, got")
        where = f"{self.source}: " if self.source else ""
        self.exit(USAGE_ERROR, f"{self.prog}: {where}{'; '.join([*self.refused, text])}\n")

    def format_help(self) -> str:
        """The short help, where `common` is set; else help on everything."""
        if not self.common:
            return self._help([(group, _shown(group)) for group in self._action_groups])
        first = [action for action in self._actions if not action.option_strings or _name(action) in self.common]
        first.sort(key=lambda action: self.common.index(_name(action)) if action.option_strings else -1)
        groups = argparse._ArgumentGroup(self, "arguments that people set first")
        return self._help([(groups, [action for action in first if action.help is not argparse.SUPPRESS])])

    def help_on(self, topic: str) -> str:
        """Help on `all`, on the groups (`listgroup`), on a group, a flag, or every flag that has this word.

        Exits with 2 where nothing matches.
        """
        groups = {_key(group.title): group for group in self._action_groups if group.description and _shown(group)}
        if topic == "all":
            return self._help([(group, _shown(group)) for group in self._action_groups])
        if topic == "listgroup":
            lines = [f"  {group.title:20} {group.description or ''}".rstrip() for group in groups.values()]
            return "\n".join(["groups, for --help=GROUP:", *lines, ""])
        flag = "--" + topic.lstrip("-").replace("_", "-")
        exact = self._option_string_actions.get(topic) or self._option_string_actions.get(flag)
        # `model` is a group and a flag; with hyphens in front it means the flag.
        if (group := groups.get(_key(topic))) is not None and not (exact is not None and topic.startswith("-")):
            return self._help([(group, _shown(group))], is_part=True)
        if exact is not None and exact.help is not argparse.SUPPRESS:
            found = [exact]
        elif exact is not None and (text := self.text_of_hidden(exact.option_strings[-1])):
            shown = copy.copy(exact)
            shown.help = text
            found = [shown]
        else:
            word = topic.lstrip("-").replace("_", "-").lower()
            found = [action for action in self._actions if _has(action, word)]
        if not found:
            reason = self.explain_unknown(flag)
            known = [name.removeprefix("--") for name in self.flags()] + [str(group.title) for group in groups.values()]
            self.error(reason or f"no help on {topic!r}{nearest(topic, known)} (--help=listgroup lists groups)")
        return self._help([(argparse._ArgumentGroup(self, topic), found)], is_part=True)

    def _help(
        self, sections: Sequence[tuple[argparse._ArgumentGroup, Sequence[argparse.Action]]], is_part: bool = False
    ) -> str:
        formatter = _rich_formatter(self.prog)
        if not is_part:
            formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
            formatter.add_text(self.description)
        for group, actions in sections:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(actions)
            formatter.end_section()
        if not is_part:
            formatter.add_text(self.epilog)
        return str(formatter.format_help())

    def _chosen(self, found: argparse.Namespace) -> "CommandParser":
        """The parser of the innermost subcommand that the options name."""
        for action in self._actions:
            nested = _parsers(action)
            if nested and (name := getattr(found, action.dest, None)) is not None:
                return nested[name]._chosen(found)
        return self

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Match no option by a prefix, not even one with a single hyphen: `-p` is not `-pp`."""
        del option_string
        return []

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(
                action, f"there is no {value!r}{nearest(str(value), known)} (choose from {', '.join(known)})"
            )


class _Help(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        del namespace, option_string
        assert isinstance(parser, CommandParser)
        sys.stdout.write(parser.help_on(values) if values else parser.format_help())
        parser.exit()


def _rich_formatter(prog: str) -> Any:
    from rich_argparse import RawDescriptionRichHelpFormatter

    class Formatter(RawDescriptionRichHelpFormatter):
        # Help texts have brackets that are no markup, such as pyllm[otel].
        text_markup = help_markup = False
        group_name_formatter = str

    return Formatter(prog, max_help_position=32)


def _shown(group: argparse._ArgumentGroup) -> list[argparse.Action]:
    return [action for action in group._group_actions if action.help is not argparse.SUPPRESS]


def _parsers(action: argparse.Action) -> dict[str, CommandParser]:
    choices = action.choices if isinstance(action, argparse._SubParsersAction) else {}
    return {name: parser for name, parser in choices.items() if isinstance(parser, CommandParser)}


def _name(action: argparse.Action) -> str:
    return next((name.removeprefix("--") for name in action.option_strings if name.startswith("--")), "")


def _has(action: argparse.Action, word: str) -> bool:
    texts = (*action.option_strings, (action.help or "").lower())
    return action.help is not argparse.SUPPRESS and any(word in text for text in texts)


def _key(title: str | None) -> str:
    """The key of a group's name: `SchedulerConfig`, `scheduler-config` and `scheduler` have the same."""
    return (title or "").lower().replace("-", "").replace("_", "").removesuffix("config")
