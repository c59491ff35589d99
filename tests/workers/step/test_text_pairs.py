"""Ids and positions of second texts, against a loop over the tokens."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyllm.workers.step.text_pairs import TextPairs

VOCABULARY, OFFSET = 10, 100


@given(st.lists(st.tuples(st.integers(-1, 2 * VOCABULARY - 1), st.integers(0, OFFSET - 1)), max_size=12))
def test_second_texts_have_their_own_ids_and_positions(given: list[tuple[int, int]]) -> None:
    tokens, positions = (np.array([each[kind] for each in given], np.int32) for kind in (0, 1))
    TextPairs(VOCABULARY, OFFSET).move(tokens, positions)
    second = [token >= VOCABULARY for token, _ in given]
    assert tokens.tolist() == [token - VOCABULARY * moved for (token, _), moved in zip(given, second, strict=True)]
    assert positions.tolist() == [at + OFFSET * moved for (_, at), moved in zip(given, second, strict=True)]
