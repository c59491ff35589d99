"""The flags of `pyllm bench` as structs: server, prompts, arrivals and report. Runs nothing."""

import argparse
import math

from pyllm.bench.bench_defaults import BACKENDS, CHAT, INPUT_TOKENS, PromptSet
from pyllm.bench.endpoint import Endpoint
from pyllm.bench.prompt_sets import PromptSource
from pyllm.bench.request_metrics import Selection
from pyllm.bench.request_rates import Arrivals
from pyllm.errors import ConfigError
from pyllm.flags.trust_flags import trust_of
from pyllm.wire.server_address import server_address, server_key


def endpoint_of(options: argparse.Namespace, url: str | None = None) -> Endpoint:
    """The server that the flags name, or the one at `url`."""
    if url is None:
        host = f"[{options.host}]" if ":" in options.host else options.host
        url = options.base_url or f"http://{host}:{options.port}"
    path = options.endpoint or BACKENDS[options.backend]
    if not path.startswith("/") or not path.isprintable() or " " in path:
        raise ConfigError(f"--endpoint {path!r} is no path such as /v1/completions")
    ignore_eos = {"ignore_eos": True} if options.ignore_eos or dataset_of(options) == "random" else {}
    return Endpoint(
        base_url=server_address(url),
        path=path,
        chat=BACKENDS[options.backend] == CHAT,
        model=options.served_model_name or options.model,
        api_key=server_key(options.api_key),
        headers=dict(options.header),
        fields={**ignore_eos, **options.sampling, **options.extra_body},
        trust=trust_of(options),
    )


def dataset_of(options: argparse.Namespace) -> PromptSet:
    """The prompt set that the flags ask for; a length asks for random prompts.

    Raises:
        ConfigError: a length is given with a set whose prompts have their own lengths.
    """
    lengths = ("input_len", "random_input_len", "random_output_len", "random_prefix_len", "random_range_ratio")
    given = [f"--{name.replace('_', '-')}" for name in lengths if getattr(options, name)]
    name: PromptSet = options.dataset_name or ("random" if given else "natural")
    if given and name != "random":
        raise ConfigError(f"{given[0]} is of random prompts, and --dataset-name is {name}: leave out either")
    return name


def prompts_of(options: argparse.Namespace) -> PromptSource:
    """The prompts that the flags name."""
    name = dataset_of(options)
    if (name == "sharegpt") != (options.dataset_path is not None):
        raise ConfigError("--dataset-path goes with --dataset-name sharegpt, and sharegpt needs it")
    own = {"random": options.random_output_len, "sharegpt": options.sharegpt_output_len}
    return PromptSource(
        name=name,
        path=options.dataset_path,
        output_tokens=options.output_len or own.get(name),
        input_tokens=options.input_len or options.random_input_len or INPUT_TOKENS,
        prefix_tokens=options.random_prefix_len,
        range_ratio=options.random_range_ratio,
        seed=options.seed,
    )


def arrivals_of(options: argparse.Namespace) -> Arrivals:
    """The arrivals that the flags describe: a rate, or a ramp."""
    start, end = options.ramp_up_start_rps, options.ramp_up_end_rps
    if options.ramp_up_strategy is None:
        return Arrivals(options.request_rate, options.burstiness)
    if not math.isinf(options.request_rate):
        raise ConfigError("--ramp-up-strategy makes the rate: leave out --request-rate")
    if start is None or end is None or start > end:
        raise ConfigError("--ramp-up-strategy needs --ramp-up-start-rps and a --ramp-up-end-rps that is not less")
    return Arrivals(burstiness=options.burstiness, ramp=options.ramp_up_strategy, start=start, end=end)


def selection_of(options: argparse.Namespace) -> Selection:
    """The latencies, percentiles and goodput targets that the flags ask for."""
    return Selection(options.percentile_metrics, options.metric_percentiles, dict(options.goodput))
