"""The flags of `pyllm bench`, under vLLM's names where it has the thing. Loads little: `--help` needs no more."""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from pyllm.bench import PromptSet

# vLLM's other backends are other protocols. Its `vllm` is its name for the same as `openai`.
BACKENDS = ("openai", "vllm", "openai-chat")
FORMATS = ("table", "json", "csv")
# What is here for flags of `vllm bench` that are not.
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
_METRICS_HELP = "of ttft, tpot, itl, e2el, client_queue_time, e2el_including_client_queue (default: the first four)"
_DEFAULT_METRICS = "ttft,tpot,itl,e2el"


def add_server_flags(parser: argparse.ArgumentParser, *, address: bool) -> None:
    """Where the requests go; without `address` other arguments say it."""
    group = parser.add_argument_group("server", "Where the requests go, and what each of them says.")
    if address:
        group.add_argument("--base-url", metavar="URL", help="http://HOST:PORT; replaces --host and --port")
        group.add_argument("--host", default="127.0.0.1", metavar="HOST", help="the server's (default: 127.0.0.1)")
        group.add_argument("--port", type=positive_int, default=8000, metavar="N", help="the server's (default: 8000)")
    group.add_argument("--model", metavar="NAME", default="", help="the first of /v1/models unless given")
    served = "the name in requests, where that is not --model"
    group.add_argument("--served-model-name", metavar="NAME", default="", help=served)
    group.add_argument("--api-key", metavar="KEY", help="else OPENAI_API_KEY, if it is set")
    group.add_argument("--backend", choices=BACKENDS, default="openai", help="completions or chat (default: openai)")
    group.add_argument("--endpoint", metavar="PATH", help="/v1/completions, or /v1/chat/completions for openai-chat")
    group.add_argument("--header", nargs="+", metavar="KEY=VALUE", default=(), help="headers of each request")
    group.add_argument("--extra-body", type=json_object, metavar="JSON", default={}, help="fields of each request")
    group.add_argument("--ignore-eos", action="store_true", help="go on to the length; always so for random prompts")
    group.add_argument("--insecure", action="store_true", help="accept any TLS certificate")


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """How the server chooses tokens."""
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
    """Which prompts a load has; without `seed` another flag is that of the prompts."""
    group = parser.add_argument_group("prompts", "What is asked.")
    group.add_argument(
        "--num-prompts",
        type=positive_int,
        default=num_prompts,
        metavar="N",
        help=f"requests of a load (default: {num_prompts})",
    )
    group.add_argument(
        "--dataset-name",
        choices=get_args(PromptSet),
        help="which prompts (default: random where a length is given, else natural)",
    )
    group.add_argument("--dataset-path", type=Path, metavar="FILE", help="a ShareGPT-style file")
    group.add_argument("--input-len", type=positive_int, metavar="N", help="the same as --random-input-len")
    group.add_argument("--output-len", type=positive_int, metavar="N", help="tokens asked for, of any dataset")
    group.add_argument("--random-input-len", type=positive_int, metavar="N", help="words of a prompt (default: 1024)")
    group.add_argument("--random-output-len", type=positive_int, metavar="N", help="tokens of an output (default: 128)")
    group.add_argument(
        "--random-prefix-len", type=not_negative_int, default=0, metavar="N", help="shared by all prompts"
    )
    group.add_argument(
        "--random-range-ratio", type=share, default=0.0, metavar="N", help="lengths vary by this share (default: 0)"
    )
    group.add_argument("--sharegpt-output-len", type=positive_int, metavar="N", help="else those of the file's answers")
    if seed:
        group.add_argument(
            "--seed", type=not_negative_int, default=0, metavar="N", help="of prompts and arrivals (default: 0)"
        )


def add_batch_flags(parser: argparse.ArgumentParser) -> None:
    """The batch of `latency`."""
    group = parser.add_argument_group("batch", "Prompts of random words that run together, again and again.")
    for flag, default, help_text in (
        ("--input-len", 32, "tokens of a prompt"),
        ("--output-len", 128, "tokens of an output"),
        ("--batch-size", 8, "prompts that run together"),
        ("--num-iters", 30, "batches that count"),
    ):
        text = f"{help_text} (default: {default})"
        group.add_argument(flag, type=positive_int, default=default, metavar="N", help=text)
    warm_up = "batches before them (default: 10)"
    group.add_argument("--num-iters-warmup", type=not_negative_int, default=10, metavar="N", help=warm_up)


def add_load_flags(parser: argparse.ArgumentParser) -> "argparse._ArgumentGroup":
    """When requests are sent, and how many at once; gives the group, for a command's own flags."""
    group = parser.add_argument_group("load", "When requests are sent, and how many at once.")
    group.add_argument(
        "--request-rate",
        type=positive,
        default=math.inf,
        metavar="N",
        help="requests/s; inf: all at once (default: inf)",
    )
    group.add_argument(
        "--burstiness", type=positive, default=1.0, metavar="N", help="1: Poisson; less is burstier (default: 1)"
    )
    group.add_argument("--max-concurrency", type=positive_int, metavar="N", help="requests that run at once, at most")
    group.add_argument("--ramp-up-strategy", choices=("linear", "exponential"), help="how the rate rises in the load")
    group.add_argument(
        "--ramp-up-start-rps", type=positive, metavar="N", help="the first rate of a ramp or of the knee"
    )
    group.add_argument("--ramp-up-end-rps", type=positive, metavar="N", help="the last one")
    group.add_argument(
        "--num-warmups", type=not_negative_int, default=1, metavar="N", help="short requests before (default: 1)"
    )
    wait = "seconds to wait until the server answers (default: 0)"
    group.add_argument("--ready-check-timeout-sec", type=not_negative_int, default=0, metavar="N", help=wait)
    timeout = "seconds after which a request has failed (default: a day)"
    group.add_argument("--timeout", type=positive, default=_DAY, metavar="SECONDS", help=timeout)
    return group


def add_report_flags(parser: argparse.ArgumentParser) -> "argparse._ArgumentGroup":
    """What is reported, and how; gives the group."""
    group = parser.add_argument_group("report", "What is printed.")
    group.add_argument("--percentile-metrics", default=_DEFAULT_METRICS, metavar="LIST", help=_METRICS_HELP)
    group.add_argument("--metric-percentiles", default="99", metavar="LIST", help="as 50,90,99 (default: 99)")
    targets = "targets in ms that make a request good: ttft:500 tpot:50 e2el:2000"
    group.add_argument("--goodput", nargs="+", metavar="NAME:MS", default=(), help=targets)
    _add_output_flag(group)
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar")
    return group


def add_offline_report_flags(parser: argparse.ArgumentParser) -> None:
    """What is reported of an engine without a server."""
    group = parser.add_argument_group("report", "What is printed and kept.")
    _add_output_flag(group)
    group.add_argument("--output-json", type=Path, metavar="FILE", help="save the result as JSON")


def add_result_flags(parser: argparse.ArgumentParser) -> None:
    """Where results are kept."""
    group = parser.add_argument_group("result", "Where the result is kept.")
    group.add_argument("--save-result", action="store_true", help="save the result as JSON")
    group.add_argument("--save-detailed", action="store_true", help="with the figures of each request")
    group.add_argument(
        "--result-dir", type=Path, default=Path(), metavar="FOLDER", help="its folder (default: this folder)"
    )
    group.add_argument("--result-filename", metavar="NAME", help="else made of label, rate, model and date")
    group.add_argument("--label", metavar="TEXT", help="the beginning of that name (default: the backend)")
    group.add_argument("--metadata", nargs="+", metavar="KEY=VALUE", default=(), help="kept in the result")


class _SamplingField(argparse.Action):
    """Gathers the fields that were given, as requests have them."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        del parser, option_string
        namespace.sampling = {**namespace.sampling, self.dest: values}


def _add_output_flag(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--output", choices=FORMATS, default="table", help="the form of the result (default: table)")


def _in_range(kind: type, holds: Callable[[float], bool], what: str) -> Callable[[str], Any]:
    """A converter for argparse, whose error says what a value must be."""

    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if math.isnan(value) or not holds(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return convert


positive_int = _in_range(int, lambda value: value > 0, "a whole number above 0")
not_negative_int = _in_range(int, lambda value: value >= 0, "a whole number from 0")
positive = _in_range(float, lambda value: value > 0, "a number above 0")
whole = _in_range(int, lambda value: True, "a whole number")
finite = _in_range(float, math.isfinite, "a number")
share = _in_range(float, lambda value: 0 <= value < 1, "a number from 0 to below 1")


def json_object(text: str) -> dict[str, Any]:
    """A JSON object, for argparse."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value
