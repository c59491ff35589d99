"""`pyllm bench throughput` and `latency`: an engine inside this process tree, without HTTP."""

import argparse
import asyncio
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import uvloop

from pyllm import AsyncEngine, SamplingParams
from pyllm.bench import result_output
from pyllm.bench.bench_options import prompts_of
from pyllm.bench.prompt_sets import Prompt, PromptSource
from pyllm.bench.result_output import Result
from pyllm.bench.serve_benchmark import INTERRUPTED

_PERCENTILES = (10, 25, 50, 75, 90, 99)  # vLLM's


def run_throughput(options: argparse.Namespace, engine_options: Mapping[str, Any]) -> int:
    """Run all prompts at once; print requests and tokens per second.

    Returns 130 after Ctrl-C; the figures are then of the requests that had ended.

    Raises:
        ConfigError: options that cannot work.
        PyllmError: the engine was lost.
    """
    source = prompts_of(options)
    prompts = source.prompts(options.num_prompts)  # Report an unreadable file before an engine starts.
    result = uvloop.run(_throughput(engine_options, source, prompts))
    text = (
        "Throughput: {requests_per_second:.2f} requests/s, {tokens_per_second:.2f} total tokens/s, "
        "{output_tokens_per_second:.2f} output tokens/s\n"
        "Requests: {num_requests} in {elapsed_time:.2f} s\n"
        "Tokens: {total_input_tokens} in, {total_output_tokens} out"
    )
    _show(options, result, text.format_map(result))
    return 0 if result["num_requests"] == options.num_prompts else INTERRUPTED


def run_latency(options: argparse.Namespace, engine_options: Mapping[str, Any]) -> int:
    """Run one batch size repeatedly; print its latency.

    Returns 130 after Ctrl-C; the figures are then of the iterations that had ended.

    Raises:
        ConfigError, PyllmError: as `run_throughput`.
    """
    latencies = uvloop.run(_latency(options, engine_options))
    if not latencies:
        print("pyllm: interrupted before the first batch that counts had ended", file=sys.stderr)
        return INTERRUPTED
    percentiles = {str(percent): float(np.percentile(latencies, percent)) for percent in _PERCENTILES}
    result = {"avg_latency": float(np.mean(latencies)), "latencies": latencies, "percentiles": percentiles}
    lines = [f"Avg latency: {result['avg_latency']:.4f} seconds"]
    lines += [f"{percent}% percentile latency: {value:.4f} seconds" for percent, value in percentiles.items()]
    _show(options, result, "\n".join(lines))
    return 0 if len(latencies) == options.num_iters else INTERRUPTED


async def _throughput(engine_options: Mapping[str, Any], source: PromptSource, prompts: Sequence[Prompt]) -> Result:
    async with AsyncEngine(**engine_options) as engine:
        batch = [_exact(engine, prompt, source) for prompt in prompts]
        ended: list[tuple[int, int]] = []  # tokens of each request's prompt and output

        async def complete(tokens: list[int], length: int) -> None:
            output = await engine.complete(tokens, _greedy(length))
            ended.append((len(tokens), len(output.outputs[0].token_ids)))

        begin = time.perf_counter()
        requests = zip(batch, prompts, strict=True)
        tasks = [asyncio.create_task(complete(tokens, prompt.output_tokens)) for tokens, prompt in requests]
        try:
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            await asyncio.gather(*tasks, return_exceptions=True)
        seconds = time.perf_counter() - begin
    num_input, num_output = (sum(request[place] for request in ended) for place in (0, 1))
    return {
        "elapsed_time": seconds,
        "num_requests": len(ended),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "total_num_tokens": num_input + num_output,
        "requests_per_second": len(ended) / seconds,
        "tokens_per_second": (num_input + num_output) / seconds,
        "output_tokens_per_second": num_output / seconds,
    }


async def _latency(options: argparse.Namespace, engine_options: Mapping[str, Any]) -> list[float]:
    """Seconds of each iteration after the warm-up."""
    latencies: list[float] = []
    async with AsyncEngine(**engine_options) as engine:
        params = _greedy(options.output_len)
        try:
            for iteration in range(options.num_iters_warmup + options.num_iters):
                # Different prompts each time: the prefix cache would hold the blocks of repeated ones.
                source = PromptSource(
                    "random", output_tokens=1, input_tokens=options.input_len, first=iteration, seed=options.seed
                )
                batch = [_exact(engine, prompt, source) for prompt in source.prompts(options.batch_size)]
                begin = time.perf_counter()
                await asyncio.gather(*(engine.complete(tokens, params) for tokens in batch))
                if iteration >= options.num_iters_warmup:
                    latencies.append(time.perf_counter() - begin)
        except asyncio.CancelledError:
            pass  # Report the finished iterations.
    return latencies


def _exact(engine: AsyncEngine, prompt: Prompt, source: PromptSource) -> list[int]:
    """The prompt's token ids; those of a random prompt are repeated or cut to its number of words."""
    tokens = list(engine.tokenizer.encode(prompt.text))
    if source.name != "random":
        return tokens
    return list(itertools.islice(itertools.cycle(tokens), len(prompt.text.split())))


def _greedy(length: int) -> SamplingParams:
    return SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True)


def _show(options: argparse.Namespace, result: Result, table: str) -> None:
    result_output.show(options.output, lambda: table, result, [result])
    if options.output_json is not None:
        result_output.save(options.output_json, result)
