"""The pool is what its seed says, and has what the cluster is to be tried with."""

import random
from collections import Counter
from pathlib import Path

from tests.cluster.pool import KINDS, LONG_PROMPT_LENGTHS, make_poisoned, make_pool


def test_the_seed_decides_the_pool() -> None:
    assert make_pool(12, 3) == make_pool(12, 3)
    assert make_pool(12, 3) != make_pool(12, 4)


def test_the_pool_has_every_kind_and_shared_beginnings() -> None:
    pool = make_pool(80, 1)
    assert Counter(request.kind for request in pool) == dict.fromkeys(KINDS, 20)
    assert len({request.name for request in pool}) == 80
    assert all((request.params.structured_outputs is not None) == (request.kind == "grammar") for request in pool)
    beginnings = Counter(tuple(request.prompt[:64]) for request in pool)
    assert sum(number for number in beginnings.values() if number > 1) > 40
    num_long = sum(len(request.prompt) >= LONG_PROMPT_LENGTHS[0] for request in pool)
    assert 0 < num_long < 20


def test_poison_says_whom_it_ends(tmp_path: Path) -> None:
    one, two = (make_poisoned(number, "core", tmp_path / "deaths", random.Random(number)) for number in (1, 2))
    assert one.params.extra_args is not None
    arguments = one.params.extra_args["poison"]
    assert (arguments["victim"], arguments["request"]) == ("core", "poison of a core 1")
    assert two.name != one.name
