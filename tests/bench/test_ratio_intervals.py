"""Intervals cover the true ratio as often as they say, and the distribution is Student's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.bench.ratio_intervals import ratio_of_rounds, ratio_of_samples, student_t

VALUES = st.lists(st.floats(0.01, 1e6), min_size=2, max_size=12)


@pytest.mark.parametrize(
    ("degrees", "t"),
    [
        (1, 12.7062),
        (2, 4.30265),
        (3, 3.18245),
        (4, 2.77645),
        (12, 2.17881),
        (13, 2.16037),
        (30, 2.04227),
        (1000, 1.96234),
    ],
)
def test_student_t_is_that_of_the_tables(degrees: int, t: float) -> None:
    assert student_t(degrees) == pytest.approx(t, abs=1e-4)


@given(VALUES)
def test_a_server_does_not_differ_from_itself(values: list[float]) -> None:
    ratio = ratio_of_rounds(values, values)
    assert (ratio.ratio, ratio.low, ratio.high) == pytest.approx((1, 1, 1))


@given(VALUES, st.floats(0.1, 10))
def test_a_constant_factor_is_found_exactly_though_rounds_differ(values: list[float], factor: float) -> None:
    ratio = ratio_of_rounds(values, [factor * value for value in values])
    assert (ratio.ratio, ratio.low, ratio.high) == pytest.approx((factor,) * 3, rel=1e-6)


@given(VALUES, st.data())
def test_swapping_the_servers_inverts_the_interval(values: list[float], data: st.DataObject) -> None:
    others = data.draw(st.lists(st.floats(0.01, 1e6), min_size=len(values), max_size=len(values)))
    one, other = ratio_of_rounds(values, others), ratio_of_rounds(others, values)
    assert one.low is not None
    assert other.high is not None
    assert one.low <= one.ratio * (1 + 1e-9)
    assert one.ratio * other.ratio == pytest.approx(1)


def test_intervals_of_rounds_cover_the_truth_as_often_as_they_say() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        a, b = generator.lognormal(0, 0.1, 5), 2 * generator.lognormal(0, 0.1, 5)
        ratio = ratio_of_rounds(a.tolist(), b.tolist())
        assert ratio.low is not None
        assert ratio.high is not None
        covered += ratio.low <= 2 <= ratio.high
    assert 930 <= covered <= 970


def test_pairs_of_requests_narrow_the_interval() -> None:
    generator = np.random.default_rng(1)
    a = generator.lognormal(0, 1, 200)
    b = 1.05 * a * generator.lognormal(0, 0.01, 200)
    paired = ratio_of_samples(a.tolist(), b.tolist(), None, paired=True)
    loose = ratio_of_samples(a.tolist(), b.tolist(), None, paired=False)
    assert paired.differs is True
    assert loose.differs is False
    assert paired.ratio == loose.ratio == pytest.approx(1.05, rel=0.01)


def test_one_measurement_has_no_interval() -> None:
    assert ratio_of_rounds([1.0], [3.0]).differs is None
    assert ratio_of_samples([1.0], [3.0], 50.0, paired=True).low is None
