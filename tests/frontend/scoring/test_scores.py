"""Scores of classes from any numbers."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.frontend.scoring.scores import class_scores, relevance
from tests.client.fake_core import MODEL

numbers = st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=8)


@given(numbers)
def test_scores_are_in_their_range_and_in_the_order_of_the_numbers(given: list[float]) -> None:
    for activation in ("sigmoid", "softmax", "identity"):
        scores = class_scores(given, activation)
        assert max(scores) == scores[given.index(max(given))]
        if activation != "identity":
            assert all(0 <= score <= 1 for score in scores)
    assert math.isclose(math.fsum(class_scores(given, "softmax")), 1)
    assert class_scores(given, "identity") == given


def test_the_number_of_two_classes_is_that_of_a_sigmoid() -> None:
    model = msgspec.structs.replace(MODEL, labels=("no", "yes"), relevant_class=1, class_activation="softmax")
    score, number = (relevance([1.5, 4.0], model, use_activation) for use_activation in (True, False))
    assert number == 2.5
    assert score == pytest.approx(class_scores([number], "sigmoid")[0])
