"""Columns of log-probabilities, against lists of them."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyllm.workers.devices.host import Arrived
from pyllm.workers.sampling.logprobs import LogprobRows, PromptLogprobs, columns

Entry = tuple[int, float]


@dataclass
class Token:
    """What is told of one token: itself and the likeliest ones, and its rank."""

    entries: list[Entry]
    rank: int


@dataclass
class Row:
    prompt_tokens: list[int]
    prompt_parts: list[list[Token]]
    sampled: list[list[Token]]  # itself, and each that it names; none: not wanted
    num_dropped: int  # tokens that were drawn and are not reported


entries = st.lists(st.tuples(st.integers(0, 9), st.floats(-9, 0, width=32)), min_size=1, max_size=4)
tokens = st.builds(Token, entries, st.integers(1, 99))


@st.composite
def rows(draw: st.DrawFn) -> Row:
    parts = draw(st.lists(st.lists(tokens, min_size=1, max_size=4), max_size=2))
    num_tokens = sum(map(len, parts))
    prompt = draw(st.lists(st.integers(0, 9), min_size=num_tokens, max_size=num_tokens))
    sampled = draw(st.lists(st.lists(tokens, max_size=3), max_size=3))
    return Row(prompt, parts, sampled, draw(st.integers(0, 2)))


def told(tokens: list[Token], num_columns: int) -> LogprobRows:
    """As the kernel gives it: as many columns for each token as the most that any of the step wants."""
    ids, values = np.full((len(tokens), num_columns), -7, np.int32), np.full((len(tokens), num_columns), 7, np.float32)
    for index, token in enumerate(tokens):
        ids[index, : len(token.entries)], values[index, : len(token.entries)] = zip(*token.entries, strict=True)
    return LogprobRows(
        np.array([len(token.entries) for token in tokens], np.int32),
        Arrived(ids),
        Arrived(values),
        Arrived(np.array([token.rank for token in tokens], np.int32)),
    )


@given(st.lists(rows(), max_size=5), st.integers(4, 6), st.integers(1, 9))
def test_columns_are_each_rows_prompt_and_then_what_was_sampled(
    step: list[Row], num_columns: int, at_once: int
) -> None:
    starts = np.cumsum([0, *(len(row.sampled) for row in step)], dtype=np.int32)
    dropped = Token([(5, -1.0), (6, -2.0)], 3)
    drawn, positions, prompts = [], [], []
    expected: list[list[Token]] = []
    for index, row in enumerate(step):
        if row.prompt_parts:
            parts = tuple(told(part, num_columns) for part in row.prompt_parts)
            prompts.append(PromptLogprobs(index, np.array(row.prompt_tokens, np.int32), parts))
            expected += [[token] for part in row.prompt_parts for token in part]
        for place, of_place in enumerate(row.sampled, int(starts[index])):
            expected.append(of_place)
            drawn += of_place
            positions += [place] * len(of_place)
        drawn += [dropped] * row.num_dropped
        positions += [-1] * row.num_dropped
    sampled = [told(drawn[start : start + at_once], num_columns) for start in range(0, len(drawn), at_once)]

    found = columns(starts, np.array(positions, np.int32), sampled, prompts)

    counts = [len(row.prompt_tokens) for row in step]
    assert ints(found.prompt_starts) == np.cumsum([0, *counts]).tolist()
    assert ints(found.prompt_tokens) == [token for row in step for token in row.prompt_tokens]
    assert (
        ints(found.starts)
        == np.cumsum([0, *(sum(len(token.entries) for token in of_place) for of_place in expected)]).tolist()
    )
    flat = [token for of_place in expected for token in of_place]
    assert ints(found.ids) == [entry[0] for token in flat for entry in token.entries]
    values = [entry[1] for token in flat for entry in token.entries]
    assert np.frombuffer(found.values, np.float32).tolist() == values
    ranks = [[token.rank, *range(1, len(token.entries))] for token in flat]
    assert ints(found.ranks) == [rank for of_token in ranks for rank in of_token]


def ints(packed: bytes) -> list[int]:
    return np.frombuffer(packed, np.int32).tolist()
