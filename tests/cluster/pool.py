"""The requests of a run, drawn from a seed: greedy, seeded, two samples, grammars; prompts with shared beginnings."""

import random
from collections.abc import Callable
from pathlib import Path

import msgspec

from pyllm import SamplingParams, StructuredOutputsParams, resolve_constraint
from tests.cluster import poison

KINDS = ("greedy", "seeded", "n = 2", "grammar")
NUM_PREFIXES = 12
PREFIX_LENGTHS = (64, 400)  # tokens, least and most
TAIL_LENGTHS = (1, 40)
OUTPUT_LENGTHS = (40, 160)
# One request in so many is long, with a prompt and an output of these lengths.
LONG_ONE_IN = 10
LONG_PROMPT_LENGTHS = (800, 1500)
LONG_OUTPUT_LENGTHS = (200, 400)
NUM_BYTE_TOKENS = 256  # of the tiny model's vocabulary; the others are special
REGEX = r"[a-z]{3,9}( [a-z]{2,9}){4,30}\."
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "number": {"type": "integer"}},
    "required": ["name", "number"],
}
MAX_TOKENS_BEFORE_DEATH = 3  # of a poisoned request; one with 8 is not blamed


class PoolRequest(msgspec.Struct, frozen=True):
    """A request that is made again and again. `name` tells requests apart."""

    name: str
    kind: str
    prompt: list[int]
    params: SamplingParams


def make_pool(number: int, seed: int) -> list[PoolRequest]:
    """So many requests, the kinds in turn."""
    choose = random.Random(seed)
    prefixes = [_tokens(choose, PREFIX_LENGTHS) for _ in range(NUM_PREFIXES)]
    makers: dict[str, Callable[[int, int], SamplingParams]] = {
        "greedy": lambda most, _: SamplingParams(temperature=0, max_tokens=most, ignore_eos=True),
        "seeded": lambda most, seed: SamplingParams(seed=seed, max_tokens=most, ignore_eos=True),
        "n = 2": lambda most, seed: SamplingParams(n=2, seed=seed, max_tokens=most, ignore_eos=True),
        "grammar": lambda most, seed: SamplingParams(
            seed=seed, max_tokens=most, structured_outputs=constraints[seed % len(constraints)]
        ),
    }
    constraints = [
        resolve_constraint(StructuredOutputsParams(regex=REGEX)),
        resolve_constraint(StructuredOutputsParams(json=SCHEMA)),
    ]
    pool = []
    for index in range(number):
        kind = KINDS[index % len(KINDS)]
        is_long = choose.randrange(LONG_ONE_IN) == 0
        prompt = _tokens(choose, LONG_PROMPT_LENGTHS) if is_long else choose.choice(prefixes)
        most = choose.randint(*(LONG_OUTPUT_LENGTHS if is_long else OUTPUT_LENGTHS))
        params = makers[kind](most, choose.getrandbits(32))
        pool.append(PoolRequest(f"{kind} {index}", kind, prompt + _tokens(choose, TAIL_LENGTHS), params))
    return pool


def make_poisoned(number: int, victim: poison.Victim, record: Path, choose: random.Random) -> PoolRequest:
    """A request that ends whatever computes it; its deaths go to the file."""
    name = f"poison of a {victim} {number}"
    arguments = poison.arguments(name, victim, choose.randint(0, MAX_TOKENS_BEFORE_DEATH), record)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, extra_args=arguments)
    return PoolRequest(name, f"poison of a {victim}", _tokens(choose, TAIL_LENGTHS), params)


def _tokens(choose: random.Random, lengths: tuple[int, int]) -> list[int]:
    return [choose.randrange(NUM_BYTE_TOKENS) for _ in range(choose.randint(*lengths))]
