"""`pyllm bench`: measures any OpenAI-compatible server, an engine without HTTP, or two servers in turn.

Each benchmark is a subcommand. Imports the code of a benchmark when it runs.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from pyllm.commands import bench_flags
from pyllm.flags.engine_arguments import MODEL_HELP, print_notices, read_settings
from pyllm.flags.settings_flags import SettingsParser, add_engine_settings, add_vllm_flags


class BenchParser(SettingsParser):
    """The parser of a benchmark: it knows the flags of `vllm bench`."""

    def explain_unknown(self, flag: str) -> str:
        """The substitute for a flag of `vllm bench`, else for one of vLLM's engine."""
        text = bench_flags.OTHERS.get(flag.lstrip("-"))
        return f"{flag}: {text}" if text else super().explain_unknown(flag)


class Benchmark(msgspec.Struct, frozen=True):
    """A subcommand. `common` are the flags that its short help shows."""

    help: str
    usage: str
    common: tuple[str, ...]
    example: str
    add_arguments: Callable[[BenchParser], None]


PARSER = BenchParser
EXAMPLES = """examples:
  pyllm bench serve --max-concurrency 4               a load on http://127.0.0.1:8000
  pyllm bench compare http://a:8000 http://b:8000     the same loads on two servers, in turn
  pyllm bench throughput MODEL                        an engine's tokens/s
  pyllm bench latency MODEL --batch-size 8            an engine's time for one batch

Flags are those of `vllm bench` where it has the thing; docs/benchmarking.md explains the figures."""
# Engine flags in the short help, beside the benchmark's own.
_ENGINE = ("dtype", "max-model-len", "max-num-seqs", "kv-cache-memory-bytes", "tensor-parallel-size")


def add_arguments(parser: BenchParser) -> None:
    """Declare one subcommand per benchmark, with its arguments."""
    parser.usage = "pyllm bench BENCHMARK [ARGUMENTS]"
    parser.epilog = EXAMPLES
    kinds = parser.add_subparsers(
        title="benchmarks", dest="benchmark", required=True, metavar="BENCHMARK", prog=parser.prog
    )
    for name, benchmark in BENCHMARKS.items():
        text = f"{benchmark.help[:1].upper()}{benchmark.help[1:]}."
        nested = kinds.add_parser(name, help=benchmark.help, description=text, usage=benchmark.usage)
        nested.epilog = benchmark.example
        nested.shorten_help(benchmark.common)
        benchmark.add_arguments(nested)


def run(options: argparse.Namespace) -> int:
    """Measure and print; return the exit code: 1 if a request failed, 130 after Ctrl-C."""
    if options.benchmark == "serve":
        from pyllm.bench.serve_benchmark import run_serve

        return run_serve(options)
    if options.benchmark == "compare":
        from pyllm.bench.compare_benchmark import run_compare

        return run_compare(options)
    from pyllm.bench.offline_benchmarks import run_latency, run_throughput

    settings, notices = read_settings(options)
    print_notices(notices)
    options.seed = options.seed or 0  # The engine's seed is also that of the prompts, as in vLLM.
    return (run_throughput if options.benchmark == "throughput" else run_latency)(options, settings)


def _add_serve(parser: BenchParser) -> None:
    bench_flags.add_server_flags(parser, address=True)
    bench_flags.add_sampling_flags(parser)
    bench_flags.add_prompt_flags(parser, num_prompts=100)
    load = bench_flags.add_load_flags(parser)
    load.add_argument("--find-knee", action="store_true", help="raise the rate until --goodput breaks")
    wanted = "share of the requests that must meet it"
    bench_flags.add_flag(load, "--knee-goodput", 0.9, wanted, type=bench_flags.share)
    report = bench_flags.add_report_flags(parser)
    report.add_argument("--plot", action="store_true", help="curves in the terminal")
    report.add_argument("--plot-file", type=Path, metavar="FILE", help="curves as PNG, by matplotlib (pyllm[plot])")
    bench_flags.add_result_flags(parser)


def _add_compare(parser: BenchParser) -> None:
    parser.add_argument("a", metavar="A", help="http://HOST:PORT, or a file of `bench serve --save-result`")
    parser.add_argument("b", metavar="B", help="the same")
    load = bench_flags.add_load_flags(parser)
    bench_flags.add_flag(load, "--rounds", 5, "loads on each, in turn", type=bench_flags.positive_int)
    bench_flags.add_server_flags(parser, address=False)
    bench_flags.add_sampling_flags(parser)
    bench_flags.add_prompt_flags(parser, num_prompts=20)
    bench_flags.add_report_flags(parser)


def _add_throughput(parser: BenchParser) -> None:
    bench_flags.add_prompt_flags(parser, num_prompts=100, seed=False)
    _add_engine(parser)


def _add_latency(parser: BenchParser) -> None:
    bench_flags.add_batch_flags(parser)
    _add_engine(parser)


def _add_engine(parser: BenchParser) -> None:
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help=MODEL_HELP)
    bench_flags.add_offline_report_flags(parser)
    add_engine_settings(parser)
    add_vllm_flags(parser)


BENCHMARKS: Mapping[str, Benchmark] = {
    "serve": Benchmark(
        help="a load on any OpenAI-compatible server",
        usage="pyllm bench serve [--base-url URL] [--FLAG VALUE ...]",
        common=(
            *("base-url", "model", "backend", "dataset-name", "num-prompts", "output-len", "request-rate"),
            *("max-concurrency", "goodput", "find-knee", "metric-percentiles", "output", "plot", "save-result"),
        ),
        example="examples:\n  pyllm bench serve --request-rate 4 --goodput ttft:500 tpot:50 --plot\n"
        "  pyllm bench serve --find-knee --goodput ttft:500",
        add_arguments=_add_serve,
    ),
    "throughput": Benchmark(
        help="an engine's tokens/s, without HTTP",
        usage="pyllm bench throughput [MODEL] [--FLAG VALUE ...]",
        common=("num-prompts", "dataset-name", "input-len", "output-len", "output", "output-json", *_ENGINE),
        example="example:\n  pyllm bench throughput model.gguf --num-prompts 100 --output-len 128",
        add_arguments=_add_throughput,
    ),
    "latency": Benchmark(
        help="an engine's time for one batch, without HTTP",
        usage="pyllm bench latency [MODEL] [--FLAG VALUE ...]",
        common=("batch-size", "input-len", "output-len", "num-iters", "output", "output-json", *_ENGINE),
        example="example:\n  pyllm bench latency model.gguf --batch-size 8 --input-len 32 --output-len 128",
        add_arguments=_add_latency,
    ),
    "compare": Benchmark(
        help="two servers in turn, or two saved results",
        usage="pyllm bench compare A B [--FLAG VALUE ...]",
        common=(
            *("rounds", "num-prompts", "output-len", "dataset-name", "request-rate", "max-concurrency", "model"),
            *("backend", "output"),
        ),
        example="examples:\n  pyllm bench compare http://localhost:8000 http://localhost:8001 --max-concurrency 4\n"
        "  pyllm bench compare before.json after.json",
        add_arguments=_add_compare,
    ),
}
