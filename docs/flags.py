"""Prints the page of all flags, from the one definition that also gives `--help`: `python docs/flags.py`."""

import argparse

from pyllm.cli import make_parser

TOPICS = {
    "ServerConfig": "The HTTP server",
    "ModelConfig": "The model and its precision",
    "CacheConfig": "The KV cache",
    "SchedulerConfig": "Scheduling",
    "ParallelConfig": "Processes",
    "DeviceConfig": "Devices and kernels",
    "RecoveryConfig": "Recovery",
    "LogConfig": "The log",
    "HeadlessConfig": "A headless core: `pyllm core`",
}

_HEAD = """# Flags

`pyllm serve` takes the flags of all tables but the last; `pyllm core` those of the last and of the engine. `LLM`,
`AsyncEngine` and `LLMEngine` take the engine's as keywords, with underscores. Names are vLLM's where vLLM has the
thing; [all flags of vLLM](vllm-flags.md). Numbers may be 8k (8,000) or 8K (8,192). `pyllm serve --config FILE` reads
flags from a YAML file."""


def main() -> None:
    """Print the page as Markdown."""
    print(_HEAD)
    shown = set()
    for command in ("serve", "core"):
        for group in make_parser(command)._action_groups:
            if group.title in TOPICS and group.title not in shown:
                shown.add(group.title)
                print(f"\n## {TOPICS[group.title]}\n\n| flag | default | |\n|---|---|---|")
                for action in group._group_actions:
                    print(_row(action))


def _row(action: argparse.Action) -> str:
    text, _, default = (action.help or "").partition(" (default: ")
    default = default.removesuffix(")")
    if isinstance(action, argparse.BooleanOptionalAction):
        flag, default = " / ".join(action.option_strings), "on" if default == "True" else "off"
    else:
        value = f"{{{','.join(action.choices)}}}" if action.choices else action.metavar
        flag = f"{', '.join(reversed(action.option_strings))} {value}"
    flag, text = flag.replace("|", "\\|"), text.replace("|", "\\|").replace("<", "&lt;")
    return f"| `{flag}` | {f'`{default}`' if default else ''} | {text} |"


if __name__ == "__main__":
    main()
