"""The flags of `pyllm bench`, under vLLM's names where vLLM has the flag. Imports little, so that `--help` is fast."""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from pyllm.bench.bench_defaults import (
    BACKEND,
    BACKENDS,
    BURSTINESS,
    INPUT_TOKENS,
    METRICS,
    OUTPUT_TOKENS,
    PERCENTILES,
    REPORTED_METRICS,
    REQUEST_RATE,
    TARGETS,
    PromptSet,
    Ramp,
)
from pyllm.flags.trust_flags import add_trust_flags

FORMATS = ("table", "json", "csv")
# Substitutes for flags of `vllm bench` that pyllm does not have.
OTHERS = {
    **dict.fromkeys(
        ("tokenizer", "tokenizer-mode", "skip-tokenizer-init"), "the server counts the tokens: leave it out"
    ),
    "trust-remote-code": "nothing of a model's code runs here: leave it out",
    "append-result": "there is one result in a file: use --save-result, each time with a name of its own",
    "plot-timeline": "use --plot or --plot-file",
    "plot-dataset-stats": "lengths are in the file of --save-detailed",
    "profile": "profile the server itself",
    "logprobs": "use --extra-body '{\"logprobs\": 1}'",
    "use-beam-search": "there is no beam search here",
    "request-id-prefix": "ids are the server's; --header x-request-id=ID gives all the same one",
    **dict.fromkeys(("lora-modules", "lora-assignment"), "give the adapter's name by --model"),
    "endpoint-type": "use --backend",
}

_DAY = 86400.0


def add_server_flags(parser: argparse.ArgumentParser, *, address: bool) -> None:
    """Flags of the server and its requests; without `address`, other arguments give the server's address."""
    group = parser.add_argument_group("server", "Where the requests go, and what each of them says.")
    if address:
        group.add_argument("--base-url", metavar="URL", help="http://HOST:PORT; replaces --host and --port")
        add_flag(group, "--host", "127.0.0.1", "the server's", metavar="HOST")
        add_flag(group, "--port", 8000, "the server's", type=positive_int)
    group.add_argument("--model", metavar="NAME", default="", help="the first of /v1/models unless given")
    served = "the name in requests, where that is not --model"
    group.add_argument("--served-model-name", metavar="NAME", default="", help=served)
    group.add_argument("--api-key", metavar="KEY", help="else OPENAI_API_KEY, if it is set")
    add_flag(group, "--backend", BACKEND, "completions or chat", choices=tuple(BACKENDS), metavar=None)
    group.add_argument("--endpoint", metavar="PATH", help="/v1/completions, or /v1/chat/completions for openai-chat")
    group.add_argument(
        "--header", nargs="+", type=pair, metavar="KEY=VALUE", default=(), help="headers of each request"
    )
    group.add_argument("--extra-body", type=json_object, metavar="JSON", default={}, help="fields of each request")
    group.add_argument("--ignore-eos", action="store_true", help="go on to the length; always so for random prompts")
    add_trust_flags(group)


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Sampling parameters of each request."""
    group = parser.add_argument_group("sampling", "Fields of each request; the server's own defaults unless given.")
    parser.set_defaults(sampling={})
    for flag, kind, help_text in (
        ("--temperature", finite, "0: always the most probable token"),
        ("--top-p", finite, "of the most probable tokens that have this much together"),
        ("--top-k", whole, "of so many of the most probable tokens"),
        ("--min-p", finite, "of the tokens with this share of the most probable one's"),
        ("--frequency-penalty", finite, "for each time that a token is in the output"),
        ("--presence-penalty", finite, "for tokens that are in the output"),
        ("--repetition-penalty", finite, "for tokens of prompt and output; 1: none"),
    ):
        group.add_argument(
            flag, action=_SamplingField, type=kind, default=argparse.SUPPRESS, metavar="N", help=help_text
        )


def add_prompt_flags(parser: argparse.ArgumentParser, num_prompts: int, *, seed: bool = True) -> None:
    """Flags that select the prompts; without `seed`, another flag gives their seed."""
    group = parser.add_argument_group("prompts", "What is asked.")
    add_flag(group, "--num-prompts", num_prompts, "requests of a load", type=positive_int)
    group.add_argument(
        "--dataset-name",
        choices=get_args(PromptSet),
        help="which prompts (default: random where a length is given, else natural)",
    )
    group.add_argument("--dataset-path", type=Path, metavar="FILE", help="a ShareGPT-style file")
    group.add_argument("--input-len", type=positive_int, metavar="N", help="the same as --random-input-len")
    group.add_argument("--output-len", type=positive_int, metavar="N", help="tokens asked for, of any dataset")
    # None where it is not given: a length asks for random prompts.
    for flag, text, default in (
        ("--random-input-len", "words of a prompt", INPUT_TOKENS),
        ("--random-output-len", "tokens of an output", OUTPUT_TOKENS),
    ):
        group.add_argument(flag, type=positive_int, metavar="N", help=f"{text} (default: {default})")
    group.add_argument(
        "--random-prefix-len", type=not_negative_int, default=0, metavar="N", help="shared by all prompts"
    )
    add_flag(group, "--random-range-ratio", 0.0, "lengths vary by this share", type=share)
    group.add_argument("--sharegpt-output-len", type=positive_int, metavar="N", help="else those of the file's answers")
    if seed:
        add_flag(group, "--seed", 0, "of prompts and arrivals", type=not_negative_int)


def add_batch_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of the batch that `latency` runs."""
    group = parser.add_argument_group("batch", "Prompts of random words that run together, again and again.")
    for flag, default, text in (
        ("--input-len", 32, "tokens of a prompt"),
        ("--output-len", 128, "tokens of an output"),
        ("--batch-size", 8, "prompts that run together"),
        ("--num-iters", 30, "batches that count"),
    ):
        add_flag(group, flag, default, text, type=positive_int)
    add_flag(group, "--num-iters-warmup", 10, "batches before them", type=not_negative_int)


def add_load_flags(parser: argparse.ArgumentParser) -> "argparse._ArgumentGroup":
    """Flags of request rate and concurrency; returns the group, for a command's own flags."""
    group = parser.add_argument_group("load", "When requests are sent, and how many at once.")
    add_flag(group, "--request-rate", REQUEST_RATE, "requests/s; inf: all at once", type=positive)
    add_flag(group, "--burstiness", BURSTINESS, "1: Poisson; less is burstier", type=positive)
    group.add_argument("--max-concurrency", type=positive_int, metavar="N", help="requests that run at once, at most")
    group.add_argument("--ramp-up-strategy", choices=get_args(Ramp), help="how the rate rises in the load")
    group.add_argument(
        "--ramp-up-start-rps", type=positive, metavar="N", help="the first rate of a ramp or of the knee"
    )
    group.add_argument("--ramp-up-end-rps", type=positive, metavar="N", help="the last one")
    add_flag(group, "--num-warmups", 1, "short requests before", type=not_negative_int)
    wait = "seconds to wait until the server answers"
    add_flag(group, "--ready-check-timeout-sec", 0, wait, type=not_negative_int)
    timeout = "seconds after which a request has failed (default: a day)"
    group.add_argument("--timeout", type=positive, default=_DAY, metavar="SECONDS", help=timeout)
    return group


def add_report_flags(parser: argparse.ArgumentParser) -> "argparse._ArgumentGroup":
    """Flags of the report; returns the group."""
    group = parser.add_argument_group("report", "What is printed.")
    reported, text = ",".join(REPORTED_METRICS), f"of {', '.join(METRICS)}"
    add_flag(group, "--percentile-metrics", reported, text, type=metrics, metavar="LIST")
    listed = ",".join(f"{percentile:g}" for percentile in PERCENTILES)
    add_flag(group, "--metric-percentiles", listed, "as 50,90,99", type=percentiles, metavar="LIST")
    targets = f"targets in ms that make a request good, of {', '.join(TARGETS)}, as ttft:500 tpot:50"
    group.add_argument("--goodput", nargs="+", type=target, metavar="NAME:MS", default=(), help=targets)
    _add_output_flag(group)
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar")
    return group


def add_offline_report_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of the report of an engine without a server."""
    group = parser.add_argument_group("report", "What is printed and kept.")
    _add_output_flag(group)
    group.add_argument("--output-json", type=Path, metavar="FILE", help="save the result as JSON")


def add_result_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that save results."""
    group = parser.add_argument_group("result", "Where the result is kept.")
    group.add_argument("--save-result", action="store_true", help="save the result as JSON")
    group.add_argument("--save-detailed", action="store_true", help="with the figures of each request")
    group.add_argument(
        "--result-dir", type=Path, default=Path(), metavar="FOLDER", help="its folder (default: this folder)"
    )
    group.add_argument("--result-filename", metavar="NAME", help="else made of label, rate, model and date")
    group.add_argument("--label", metavar="TEXT", help="the beginning of that name (default: the backend)")
    group.add_argument("--metadata", nargs="+", type=pair, metavar="KEY=VALUE", default=(), help="kept in the result")


def add_flag(
    group: "argparse._ArgumentGroup",
    flag: str,
    default: float | str,
    text: str,
    *,
    metavar: str | None = "N",
    type: Callable[[str], Any] = str,  # noqa: A002  # argparse's name for it
    choices: tuple[str, ...] | None = None,
) -> None:
    """A flag whose help ends with its default."""
    shown = default if isinstance(default, str) else f"{default:g}"
    group.add_argument(
        flag, type=type, default=default, choices=choices, metavar=metavar, help=f"{text} (default: {shown})"
    )


class _SamplingField(argparse.Action):
    """Collects the given sampling fields under their names in a request."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        del parser, option_string
        namespace.sampling = {**namespace.sampling, self.dest: values}


def _add_output_flag(group: "argparse._ArgumentGroup") -> None:
    add_flag(group, "--output", FORMATS[0], "the form of the result", choices=FORMATS, metavar=None)


def _in_range(kind: type, holds: Callable[[float], bool], what: str) -> Callable[[str], Any]:
    """A converter for argparse; its error says which values are allowed."""

    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if math.isnan(value) or not holds(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return convert


# Making more prompts or tokens takes minutes, and no server accepts them.
_MAX_NUMBER = 1_000_000

positive_int = _in_range(int, lambda value: 0 < value <= _MAX_NUMBER, f"a whole number above 0, up to {_MAX_NUMBER:,}")
not_negative_int = _in_range(int, lambda value: value >= 0, "a whole number from 0")
positive = _in_range(float, lambda value: value > 0, "a number above 0")
whole = _in_range(int, lambda value: True, "a whole number")
finite = _in_range(float, math.isfinite, "a number")
share = _in_range(float, lambda value: 0 <= value < 1, "a number from 0 to below 1")
_percentile = _in_range(float, lambda value: 0 <= value <= 100, "a percentile from 0 to 100")
_milliseconds = _in_range(float, lambda value: value >= 0, "a number of milliseconds from 0")


def metrics(text: str) -> tuple[str, ...]:
    """Names of latencies, for argparse."""
    names = tuple(name.strip() for name in text.split(","))
    if unknown := [name for name in names if name not in METRICS]:
        raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}: take of {', '.join(METRICS)}")
    return names


def percentiles(text: str) -> tuple[float, ...]:
    """Percentiles, for argparse."""
    return tuple(map(_percentile, text.split(",")))


def target(text: str) -> tuple[str, float]:
    """A target of goodput, for argparse."""
    name, _, value = text.partition(":")
    if name not in TARGETS or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:MS with a name of {', '.join(TARGETS)}")
    return name, _milliseconds(value)


def pair(text: str) -> tuple[str, str]:
    """A key and its value, for argparse."""
    key, equals, value = text.partition("=")
    if not equals or not key or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()


def json_object(text: str) -> dict[str, Any]:
    """A JSON object, for argparse."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value
