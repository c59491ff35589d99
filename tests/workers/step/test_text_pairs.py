"""Positions of second texts, against a loop over each sequence."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyllm.workers.step.text_pairs import TextPairs

SEPARATOR, OFFSET = 3, 100


@given(st.lists(st.lists(st.integers(1, 5), max_size=6), max_size=5))
def test_tokens_after_the_first_separator_of_each_sequence_are_moved(sequences: list[list[int]]) -> None:
    lengths = [len(sequence) for sequence in sequences]
    tokens = np.array([token for sequence in sequences for token in sequence], np.int32)
    positions = np.array([index for length in lengths for index in range(length)], np.int32)
    TextPairs(SEPARATOR, OFFSET).move(tokens, positions, np.cumsum([0, *lengths], dtype=np.int32))
    wanted = [
        index + OFFSET * (SEPARATOR in sequence[:index]) for sequence in sequences for index in range(len(sequence))
    ]
    assert positions.tolist() == wanted
