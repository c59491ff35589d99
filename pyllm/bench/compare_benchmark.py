"""`pyllm bench compare A B`: two servers in turn, or two saved results, with an interval for each figure's ratio."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import uvloop

from pyllm.bench import result_output
from pyllm.bench.bench_options import arrivals_of, endpoint_of, prompts_of, selection_of
from pyllm.bench.load_run import LoadResult
from pyllm.bench.ratio_intervals import Ratio, ratio_of_rounds, ratio_of_samples
from pyllm.bench.request_metrics import Figures, summarise
from pyllm.bench.result_output import Result
from pyllm.bench.serve_benchmark import exit_code, measure, ready
from pyllm.errors import ConfigError, PyllmError

Samples = Mapping[str, Sequence[float]]

_SCHEMES = ("http://", "https://")
_THROUGHPUTS = ("request_throughput", "request_goodput", "output_throughput")
# Compared statistics of saved results, each with its percentile; None is the mean.
_OF_FILES: Mapping[str, float | None] = {"mean": None, "median": 50.0, "p99": 99.0}


def run_compare(options: argparse.Namespace) -> int:
    """Run the command and print the ratios of B's figures to A's; return the exit code.

    Raises:
        ConfigError: A and B are neither two addresses nor two results.
        PyllmError: a server cannot be measured, or all its requests failed.
    """
    addresses = [text.startswith(_SCHEMES) for text in (options.a, options.b)]
    if addresses[0] != addresses[1]:
        raise ConfigError("an address and a file cannot be compared: give two addresses or two files of --save-result")
    if addresses[0]:
        ratios, code = uvloop.run(_compare_servers(options))
    else:
        ratios, code = compare_results(result_output.load(Path(options.a)), result_output.load(Path(options.b))), 0
    if not ratios:
        raise PyllmError("nothing to compare: no round ended on both sides, or every request failed on one")
    rows = [{"figure": name, **msgspec.structs.asdict(ratio)} for name, ratio in ratios.items()]
    result_output.show(options.output, lambda: _table(ratios, is_of_files=not addresses[0]), rows, rows)
    return code


async def _compare_servers(options: argparse.Namespace) -> tuple[dict[str, Ratio], int]:
    """Measure A, B, A, B ...; in a round both get the same prompts at the same times, in the next round other ones."""
    source, arrivals, selection = prompts_of(options), arrivals_of(options), selection_of(options)
    named = [endpoint_of(options, url) for url in (options.a, options.b)]
    source.prompts(1)  # Report an unreadable file before anything is sent.
    endpoints = [await ready(options, endpoint) for endpoint in named]
    rounds: list[list[Figures]] = [[], []]
    results: list[LoadResult] = []
    for number in range(options.rounds):
        prompts = msgspec.structs.replace(source, first=number * options.num_prompts).prompts(options.num_prompts)
        for name, endpoint, figures in zip("AB", endpoints, rounds, strict=True):
            results.append(await measure(options, endpoint, prompts, arrivals, options.seed + number))
            if results[-1].unfinished:
                return _ratios(rounds), exit_code(results)
            figures.append(summarise(results[-1], selection))
            text = f"round {number + 1}, {name}: {figures[-1]['output_throughput']:.2f} output tokens/s"
            print(f"{text}, {figures[-1]['failed']:.0f} failed", file=sys.stderr)
    return _ratios(rounds), exit_code(results)


def _ratios(rounds: Sequence[Sequence[Figures]]) -> dict[str, Ratio]:
    """Ratios of the figures that are above 0 in every round; a round that only one side finished is left out."""
    pairs = list(zip(*rounds, strict=False))
    if not pairs:
        return {}
    names = [
        name for name in pairs[0][0] if name in _THROUGHPUTS or (name.endswith("_ms") and not name.startswith("std"))
    ]
    values = {name: ([a[name] for a, _ in pairs], [b[name] for _, b in pairs]) for name in names}
    return {name: ratio_of_rounds(a, b) for name, (a, b) in values.items() if min(*a, *b) > 0}


def compare_results(a: Result, b: Result) -> dict[str, Ratio]:
    """Ratios of two saved results. Throughputs have no interval; latencies have one with --save-detailed."""
    ratios = {
        name: Ratio(a[name], b[name], b[name] / a[name])
        for name in _THROUGHPUTS
        if isinstance(a.get(name), float | int) and isinstance(b.get(name), float | int) and min(a[name], b[name]) > 0
    }
    first, second = _samples(a), _samples(b)
    paired = bool(first) and first["prompt"] == second.get("prompt")
    for metric in ("ttft", "tpot", "e2el"):
        for statistic, percentile in _OF_FILES.items():
            name = f"{statistic}_{metric}_ms"
            if first.get(metric) and second.get(metric):
                # Outputs of one token have no TPOT, so the TPOT samples of A and B may be of different requests.
                are_all = len(first[metric]) == len(first["ttft"]) == len(second[metric])
                ratios[name] = ratio_of_samples(first[metric], second[metric], percentile, paired=paired and are_all)
            elif min(a.get(name) or 0, b.get(name) or 0) > 0:
                ratios[name] = Ratio(a[name], b[name], b[name] / a[name])
    return ratios


def _samples(result: Result) -> Samples:
    """Latencies of each request that did not fail, in milliseconds, from lists that vLLM's results have, too.

    `prompt` identifies the requests by index and length: two runs with equal `prompt` had the same prompts.
    """
    lists = [result.get(name) for name in ("ttfts", "itls", "output_lens", "input_lens")]
    if not all(isinstance(values, list) for values in lists):
        return {}
    samples: dict[str, list[float]] = {"prompt": [], "ttft": [], "tpot": [], "e2el": []}
    errors = result.get("errors") or [""] * len(result["ttfts"])
    for place, (ttft, itl, length, prompt, error) in enumerate(
        zip(*map(list, lists), errors, strict=False)  # type: ignore[arg-type]  # They are lists, as checked above.
    ):
        if error or not ttft:
            continue
        samples["prompt"] += [place, prompt]
        samples["ttft"].append(1000 * ttft)
        samples["e2el"].append(1000 * (ttft + sum(itl)))
        if length > 1:
            samples["tpot"].append(1000 * sum(itl) / (length - 1))
    return samples


def _table(ratios: Mapping[str, Ratio], *, is_of_files: bool) -> str:
    header = ["", "A", "B", "B / A", "95 % interval", "differs"]
    cells = [[name, f"{it.a:.2f}", f"{it.b:.2f}", f"{it.ratio:.3f}", *_verdict(it)] for name, it in ratios.items()]
    note = "\nThe intervals are of the requests within one run each; runs differ more. Compare servers for that."
    return result_output.columns(header, cells) + note * is_of_files


def _verdict(ratio: Ratio) -> tuple[str, str]:
    if ratio.low is None or ratio.high is None:
        return "-", "-"
    return f"{ratio.low:.3f} to {ratio.high:.3f}", "yes" if ratio.differs else "not shown"
