"""Which prompts the flags of a benchmark ask for."""

import argparse

import pytest

from pyllm.bench.bench_options import dataset_of, prompts_of
from pyllm.commands import bench_flags
from pyllm.errors import ConfigError


def read(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench_flags.add_prompt_flags(parser, num_prompts=3)
    return parser.parse_args(arguments)


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
