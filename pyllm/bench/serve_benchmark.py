"""`pyllm bench serve`: one load on a server, or several of rising rate until its targets break."""

import argparse
import math
import sys
from collections.abc import Sequence
from functools import partial

import msgspec
import uvloop
from tqdm import tqdm

from pyllm.bench import plots, result_output
from pyllm.bench.bench_options import arrivals_of, endpoint_of, prompts_of, selection_of
from pyllm.bench.endpoint import Endpoint, find_model, read_totals, server_figures, wait_until_ready, warm_up
from pyllm.bench.load_run import LoadResult, Timed, run_load
from pyllm.bench.prompt_sets import Prompt, PromptSource, warm_up_prompts
from pyllm.bench.request_metrics import errors_by_name, good_share, summarise
from pyllm.bench.request_rates import Arrivals, next_rate
from pyllm.bench.result_output import Result
from pyllm.errors import ConfigError

INTERRUPTED = 130  # exit code that a shell reports for a command that SIGINT ended

_BUSY_CLIENT = 0.8  # of the one core that this process can use
_FIRST_RATE, _LAST_RATE = 1.0, 1024.0


# Flags that --find-knee does not use.
_NOT_WITH_KNEE = ("save_result", "save_detailed", "metadata")


def run_serve(options: argparse.Namespace) -> int:
    """Run the command and print its result; return the exit code, 1 if a request failed.

    Raises:
        ConfigError: flags that cannot work.
        PyllmError: the server cannot be measured.
    """
    endpoint, source, arrivals = endpoint_of(options), prompts_of(options), arrivals_of(options)
    if options.find_knee and (not options.goodput or options.ramp_up_strategy):
        raise ConfigError("--find-knee raises the rate until --goodput breaks: give its targets and no ramp")
    if options.find_knee and (unused := [name for name in _NOT_WITH_KNEE if getattr(options, name)]):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
        raise ConfigError(f"--find-knee sets the rate itself and saves nothing: leave out {flags}")
    if options.plot_file is not None:
        plots.check_matplotlib()
    prompts = source.prompts(options.num_prompts)
    if options.find_knee:
        return uvloop.run(_find_knee(options, endpoint, source))
    result, measured = uvloop.run(_serve(options, endpoint, prompts, arrivals))
    result |= dict(options.metadata)
    result_output.show(options.output, lambda: result_output.serving_table(result), result, [result])
    curves = {"TTFT": [record.ttft for record in measured.records if not record.error]}
    curves["ITL"] = [gap for record in measured.records for gap in record.itl]
    _plot(options, plots.latency_plots(curves))
    if options.save_result or options.save_detailed:
        details = result_output.details(measured.records) if options.save_detailed else {}
        name = options.result_filename or result_output.file_name(result)
        result_output.save(options.result_dir / name, result | details)
    return exit_code([measured])


async def ready(options: argparse.Namespace, endpoint: Endpoint) -> Endpoint:
    """The endpoint with its model, once the server has answered short requests."""
    if options.ready_check_timeout_sec:
        await wait_until_ready(endpoint, options.ready_check_timeout_sec)
    endpoint = await find_model(endpoint)
    await warm_up(endpoint, warm_up_prompts(options.num_warmups))
    return endpoint


async def measure(
    options: argparse.Namespace, endpoint: Endpoint, prompts: Sequence[Prompt], arrivals: Arrivals, seed: int
) -> LoadResult:
    """Run one load; notes about it go to stderr."""
    times = arrivals.times(len(prompts), seed)
    requests = [Timed(endpoint.request(prompt), due) for prompt, due in zip(prompts, times, strict=True)]
    with (
        endpoint.client() as client,
        tqdm(total=len(requests), disable=options.disable_tqdm or None, unit="req", leave=False) as bar,
    ):
        result = await run_load(
            client, requests, options.max_concurrency, seconds_each=options.timeout, ended=partial(bar.update, 1)
        )
    if any(not record.error and not record.has_usage for record in result.records):
        print("note: the server gives no usage, so each chunk counts as one token", file=sys.stderr)
    if result.client_cores > _BUSY_CLIENT:
        print(
            f"note: this client used {result.client_cores:.2f} of the one core that it can use: "
            "it may be what the figures measure; share the load among several",
            file=sys.stderr,
        )
    return result


def exit_code(results: Sequence[LoadResult]) -> int:
    """130 after Ctrl-C, 1 where a request failed, else 0. Prints the number of failures and the first to stderr."""
    records = [record for result in results for record in result.records]
    failed = [record for record in records if record.error]
    if failed:
        print(
            f"pyllm: {len(failed)} of {len(records)} requests failed; the first one: {failed[0].error}", file=sys.stderr
        )
    if any(result.unfinished for result in results):
        return INTERRUPTED
    return 1 if failed else 0


async def _serve(
    options: argparse.Namespace, endpoint: Endpoint, prompts: Sequence[Prompt], arrivals: Arrivals
) -> tuple[Result, LoadResult]:
    endpoint = await ready(options, endpoint)
    before = await read_totals(endpoint)
    measured = await measure(options, endpoint, prompts, arrivals, options.seed)
    num_single = sum(not record.error and record.output_tokens == 1 for record in measured.records)
    ramp = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps") if options.ramp_up_strategy else ()
    result: Result = {
        "date": result_output.now(),
        "backend": options.backend,
        "label": options.label or options.backend,
        "model_id": endpoint.model,
        "num_prompts": len(prompts),
        "request_rate": "inf" if math.isinf(arrivals.rate) else arrivals.rate,
        "burstiness": arrivals.burstiness,
        "max_concurrency": options.max_concurrency,
        **{name: getattr(options, name) for name in ramp},
        **summarise(measured, selection_of(options)),
        **server_figures(before, await read_totals(endpoint), num_single),
        "failures": errors_by_name(measured.records),
    }
    return result, measured


async def _find_knee(options: argparse.Namespace, endpoint: Endpoint, source: PromptSource) -> int:
    endpoint, selection = await ready(options, endpoint), selection_of(options)
    first, last = options.ramp_up_start_rps or _FIRST_RATE, options.ramp_up_end_rps or _LAST_RATE
    knee: float | None = None
    broke, steps, results = math.inf, list[Result](), list[LoadResult]()
    while (rate := next_rate(knee, broke, first, last)) is not None:
        # Different prompts each time: the prefix cache would hold the blocks of repeated ones.
        fresh = msgspec.structs.replace(source, first=len(steps) * options.num_prompts).prompts(options.num_prompts)
        measured = await measure(options, endpoint, fresh, Arrivals(rate, options.burstiness), options.seed)
        results.append(measured)
        if measured.unfinished:
            break
        good = good_share(measured, selection.goodput)
        knee, broke = (rate, broke) if good >= options.knee_goodput else (knee, rate)
        steps.append({"request_rate": rate, "good_share": good, **summarise(measured, selection)})
        print(f"{rate:.2f} requests/s: {good:.0%} good", file=sys.stderr)
    steps.sort(key=lambda step: float(step["request_rate"]))
    whole = {"knee_request_rate": knee, "steps": steps}
    result_output.show(options.output, lambda: _knee_table(knee, broke, steps, options.knee_goodput), whole, steps)
    rates, shares = ([step[name] for step in steps] for name in ("request_rate", "good_share"))
    _plot(options, plots.knee_plots(rates, shares))
    # A server that refuses some requests at a high rate still has a knee: that is no failure.
    some_good = any(not record.error for result in results for record in result.records)
    return 0 if some_good and not results[-1].unfinished else exit_code(results)


def _knee_table(knee: float | None, broke: float, steps: Sequence[Result], wanted: float) -> str:
    latencies = [name for name in (steps[0] if steps else {}) if name.startswith("p") and name.endswith("_ms")]
    names = ["request_rate", "good_share", "request_goodput", "output_throughput", *latencies]
    table = result_output.columns(names, [[f"{step[name]:.2f}" for name in names] for step in steps])
    targets = f"{wanted:.0%} of the requests met their targets"
    if knee is None:
        return f"{table}\nno knee: at no rate {targets}"
    if math.isinf(broke):
        advice = "raise --ramp-up-end-rps or --num-prompts"
        return f"{table}\nno knee up to {knee:.2f} requests/s: {targets}; {advice}"
    return f"{table}\nknee: {knee:.2f} requests/s, the highest rate at which {targets}"


def _plot(options: argparse.Namespace, panels: Sequence[plots.Panel]) -> None:
    if options.plot:
        plots.show(panels)
    if options.plot_file is not None:
        plots.save_png(panels, options.plot_file)
