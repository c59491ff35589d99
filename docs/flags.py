"""Prints the page of all flags, from the one definition that also gives `--help`: `python docs/flags.py`."""

import argparse

from pyllm.cli import make_parser

TOPICS = {
    "server": "The HTTP server",
    "model": "The model and its precision",
    "cache": "The KV cache",
    "scheduler": "Scheduling",
    "parallel": "Processes",
    "device": "Devices and kernels",
    "recovery": "Recovery",
    "headless": "A headless core: `pyllm core`",
}

_HEAD = """# Flags

`pyllm serve` takes the flags of all tables but the last; `pyllm core` those of the last and of the engine. `LLM`,
`AsyncEngine` and `LLMEngine` take the engine's as keywords, with underscores. Names are vLLM's where vLLM has the
thing."""


def main() -> None:
    """Print the page as Markdown."""
    print(_HEAD)
    shown = set()
    for command in ("serve", "core"):
        for group in _parser(command)._action_groups:
            if group.title in TOPICS and group.title not in shown:
                shown.add(group.title)
                print(f"\n## {TOPICS[group.title]}\n\n| flag | default | |\n|---|---|---|")
                for action in group._group_actions:
                    print(_row(action))


def _parser(command: str) -> argparse.ArgumentParser:
    commands = next(action for action in make_parser()._actions if action.choices)
    parser = dict(commands.choices or {})[command]
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def _row(action: argparse.Action) -> str:
    text, _, default = (action.help or "").partition(" (default: ")
    default = default.removesuffix(")")
    if isinstance(action, argparse.BooleanOptionalAction):
        flag, default = " / ".join(action.option_strings), "on" if default == "True" else "off"
    elif action.choices:
        flag = f"{action.option_strings[0]} {{{','.join(action.choices)}}}"
    else:
        flag = f"{action.option_strings[0]} {action.metavar}"
    flag, text = flag.replace("|", "\\|"), text.replace("|", "\\|").replace("<", "&lt;")
    return f"| `{flag}` | {f'`{default}`' if default else ''} | {text} |"


if __name__ == "__main__":
    main()
