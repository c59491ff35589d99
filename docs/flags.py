"""Prints the page of all flags, from the one definition that also gives `--help`: `python docs/flags.py`."""

import argparse

from pyllm.cli import make_parser

TOPICS = {
    "ServerConfig": "The HTTP server",
    "CatalogueConfig": "Several models",
    "ModelConfig": "The model and its precision",
    "CacheConfig": "The KV cache",
    "SchedulerConfig": "Scheduling",
    "ParallelConfig": "Processes",
    "DeviceConfig": "Devices and kernels",
    "SparseAttentionConfig": "Sparse attention",
    "LoraConfig": "LoRA adapters",
    "RecoveryConfig": "Recovery",
    "LogConfig": "The log",
    "HeadlessConfig": "A headless core: `pyllm core`",
}

# Of `pyllm bench`: the group's title, and the benchmark that shows it.
BENCH_TOPICS = {
    "server": "serve",
    "sampling": "serve",
    "prompts": "serve",
    "load": "serve",
    "report": "serve",
    "result": "serve",
    "batch": "latency",
}

_HEAD = """# Flags

`pyllm serve` takes the flags of all tables before that of `pyllm core`, which takes its own and the engine's. `LLM`,
`AsyncEngine` and `LLMEngine` take the engine's as keywords, with underscores. Names are vLLM's where vLLM has the
thing; [all flags of vLLM](vllm-flags.md). Numbers may be 8k (8,000) or 8K (8,192). `pyllm serve --config FILE` reads
flags from a YAML file."""
_BENCH = """## Benchmarks: `pyllm bench`

`serve` and `compare` take the flags of all these tables but the last; `compare` has `--rounds`, and neither the address
nor the result. `throughput` takes those of the prompts, `latency` those of the batch; both take the engine's, whose
`--seed` is then that of the prompts, `--output` and `--output-json FILE`. [What the figures mean](benchmarking.md)."""


def main() -> None:
    """Print the page as Markdown."""
    print(_HEAD)
    shown = set()
    for command in ("serve", "core"):
        for group in make_parser(command)._action_groups:
            if group.title in TOPICS and group.title not in shown:
                shown.add(group.title)
                _table(f"## {TOPICS[group.title]}", group)
    print(f"\n{_BENCH}")
    benchmarks = make_parser("bench").commands()
    for title, name in BENCH_TOPICS.items():
        group = next(group for group in benchmarks[name]._action_groups if group.title == title)
        _table(f"### {title.capitalize()}", group)


def _table(heading: str, group: argparse._ArgumentGroup) -> None:
    print(f"\n{heading}\n\n| flag | default | |\n|---|---|---|")
    for action in group._group_actions:
        print(_row(action))


def _row(action: argparse.Action) -> str:
    text, _, default = (action.help or "").partition(" (default: ")
    default = default.removesuffix(")")
    if isinstance(action, argparse.BooleanOptionalAction):
        flag, default = " / ".join(action.option_strings), "on" if default == "True" else "off"
    elif action.nargs == 0:
        flag = action.option_strings[-1]
    else:
        value = f"{{{','.join(action.choices)}}}" if action.choices else action.metavar
        flag = f"{', '.join(reversed(action.option_strings))} {value}"
    flag, text = flag.replace("|", "\\|"), text.replace("|", "\\|").replace("<", "&lt;")
    return f"| `{flag}` | {f'`{default}`' if default else ''} | {text} |"


if __name__ == "__main__":
    main()
