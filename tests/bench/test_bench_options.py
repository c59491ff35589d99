"""Which prompts the flags of a benchmark ask for."""

import argparse

import pytest

from pyllm.bench.bench_defaults import BACKENDS
from pyllm.bench.bench_options import arrivals_of, dataset_of, endpoint_of, prompts_of, selection_of
from pyllm.bench.prompt_sets import PromptSource
from pyllm.bench.request_metrics import Selection
from pyllm.bench.request_rates import Arrivals
from pyllm.commands import bench_flags
from pyllm.errors import ConfigError


def read(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench_flags.add_prompt_flags(parser, num_prompts=3)
    return parser.parse_args(arguments)


def test_flags_that_are_not_given_are_the_structs_defaults() -> None:
    parser = argparse.ArgumentParser()
    bench_flags.add_prompt_flags(parser, num_prompts=3)
    bench_flags.add_load_flags(parser)
    bench_flags.add_report_flags(parser)
    options = parser.parse_args([])
    assert (prompts_of(options), arrivals_of(options), selection_of(options)) == (
        PromptSource(),
        Arrivals(),
        Selection(),
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_has_its_route(backend: str) -> None:
    parser = argparse.ArgumentParser()
    bench_flags.add_server_flags(parser, address=True)
    bench_flags.add_sampling_flags(parser)
    bench_flags.add_prompt_flags(parser, num_prompts=3)
    endpoint = endpoint_of(parser.parse_args(["--backend", backend, "--api-key", "k"]))
    assert (endpoint.path, endpoint.chat) == (BACKENDS[backend], backend == "openai-chat")


@pytest.mark.parametrize(
    ("arguments", "name", "input_tokens"),
    [
        ((), "natural", 1024),
        (("--output-len", "4"), "natural", 1024),
        (("--input-len", "512"), "random", 512),
        (("--random-input-len", "500", "--random-output-len", "4"), "random", 500),
        (("--dataset-name", "random"), "random", 1024),
    ],
)
def test_a_length_asks_for_random_prompts(arguments: tuple[str, ...], name: str, input_tokens: int) -> None:
    source = prompts_of(read(*arguments))
    assert (source.name, source.input_tokens) == (name, input_tokens)


@pytest.mark.parametrize("name", ["natural", "sharegpt"])
def test_other_prompts_have_lengths_of_their_own(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--input-len is of random prompts, and --dataset-name is {name}"):
        dataset_of(read("--dataset-name", name, "--input-len", "9"))
