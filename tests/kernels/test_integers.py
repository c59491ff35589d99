from hypothesis import given
from hypothesis import strategies as st
from pyllm_kernels.integers import ceil_div, next_power_of_2


@given(st.integers(1, 1 << 20))
def test_the_least_power_that_is_large_enough(number: int) -> None:
    power = next_power_of_2(number)
    assert power.bit_count() == 1
    assert power // 2 < number <= power


@given(st.integers(0, 1 << 20), st.integers(1, 1 << 10))
def test_a_quotient_is_rounded_up(number: int, divisor: int) -> None:
    assert (ceil_div(number, divisor) - 1) * divisor < number <= ceil_div(number, divisor) * divisor
