"""`pyllm bench serve | throughput | latency | compare` as commands; loads what a command needs when it runs."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyllm.bench import bench_flags
from pyllm.errors import ConfigError

EngineArguments = Callable[[argparse.ArgumentParser], None]
EngineOptions = Callable[[argparse.Namespace], Mapping[str, Any]]

_USAGE_ERROR = 2


def add_bench_arguments(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    add_engine: EngineArguments,
    engine_options: EngineOptions,
) -> None:
    """Add `bench` to the program's commands; each of its own sets `run`, which gives an exit code.

    `add_engine` adds the model and the engine's flags to a parser, and `engine_options` gives what was set of them.
    """
    bench = commands.add_parser("bench", allow_abbrev=False, help="measure a server or an engine, compare two")
    kinds = bench.add_subparsers(required=True, metavar="BENCHMARK")
    _add_serve(kinds.add_parser("serve", allow_abbrev=False, help="a load on any OpenAI-compatible server"))
    throughput = kinds.add_parser("throughput", allow_abbrev=False, help="an engine's tokens/s, without HTTP")
    latency = kinds.add_parser("latency", allow_abbrev=False, help="an engine's time for one batch, without HTTP")
    _add_throughput(throughput, add_engine, engine_options)
    _add_latency(latency, add_engine, engine_options)
    _add_compare(kinds.add_parser("compare", allow_abbrev=False, help="two servers in turn, or two saved results"))


def _add_serve(parser: argparse.ArgumentParser) -> None:
    bench_flags.add_server_flags(parser, address=True)
    bench_flags.add_prompt_flags(parser, num_prompts=100)
    load = bench_flags.add_load_flags(parser)
    load.add_argument("--find-knee", action="store_true", help="raise the rate until --goodput breaks")
    wanted = "share of the requests that must meet it (default: 0.9)"
    load.add_argument("--knee-goodput", type=bench_flags.share, default=0.9, metavar="N", help=wanted)
    report = bench_flags.add_report_flags(parser)
    report.add_argument("--plot", action="store_true", help="curves in the terminal")
    report.add_argument("--plot-file", type=Path, metavar="FILE.png", help="curves by matplotlib (pyllm[plot])")
    bench_flags.add_result_flags(parser)

    def run(options: argparse.Namespace) -> int:
        from pyllm.bench.serve_benchmark import run_serve

        return run_serve(options)

    parser.set_defaults(run=_said(run))


def _add_throughput(parser: argparse.ArgumentParser, add_engine: EngineArguments, given: EngineOptions) -> None:
    add_engine(parser)
    bench_flags.add_prompt_flags(parser, num_prompts=100)
    _add_offline_report(parser)

    def run(options: argparse.Namespace) -> int:
        from pyllm.bench.offline_benchmarks import run_throughput

        return run_throughput(options, given(options))

    parser.set_defaults(run=_said(run))


def _add_latency(parser: argparse.ArgumentParser, add_engine: EngineArguments, given: EngineOptions) -> None:
    add_engine(parser)
    group = parser.add_argument_group("batch")
    for flag, default, help_text in (
        ("--input-len", 32, "tokens of a prompt"),
        ("--output-len", 128, "tokens of an output"),
        ("--batch-size", 8, "prompts that run together"),
        ("--num-iters", 30, "batches that count"),
    ):
        kind = bench_flags.positive_int
        group.add_argument(flag, type=kind, default=default, metavar="N", help=f"{help_text} (default: {default})")
    warm_up = "batches before them (default: 10)"
    group.add_argument("--num-iters-warmup", type=bench_flags.not_negative_int, default=10, metavar="N", help=warm_up)
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of the prompts (default: 0)")
    _add_offline_report(parser)

    def run(options: argparse.Namespace) -> int:
        from pyllm.bench.offline_benchmarks import run_latency

        return run_latency(options, given(options))

    parser.set_defaults(run=_said(run))


def _add_offline_report(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("report")
    bench_flags.add_output_flag(group)
    group.add_argument("--output-json", type=Path, metavar="FILE", help="save the result as JSON")


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="http://HOST:PORT, or a file of `bench serve --save-result`")
    parser.add_argument("b", metavar="B", help="the same")
    rounds = "loads on each, in turn (default: 5)"
    parser.add_argument("--rounds", type=bench_flags.positive_int, default=5, metavar="N", help=rounds)
    bench_flags.add_server_flags(parser, address=False)
    bench_flags.add_prompt_flags(parser, num_prompts=20)
    bench_flags.add_load_flags(parser)
    bench_flags.add_report_flags(parser)

    def run(options: argparse.Namespace) -> int:
        from pyllm.bench.compare_benchmark import run_compare

        return run_compare(options)

    parser.set_defaults(run=_said(run))


def _said(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """A flag that cannot work ends as argparse's own errors do; other errors are the program's to print."""

    def run_and_say(options: argparse.Namespace) -> int:
        try:
            return run(options)
        except ConfigError as error:
            print(f"pyllm: {error}", file=sys.stderr)
            return _USAGE_ERROR

    return run_and_say
