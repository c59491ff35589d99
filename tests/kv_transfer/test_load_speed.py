from pyllm.kv_transfer import LoadSpeed


def test_what_was_never_measured_is_worth_a_load() -> None:
    assert LoadSpeed().is_faster(1000, 0.001)
    assert LoadSpeed().tokens_per_second == 0


def test_a_load_is_worth_it_while_it_is_faster_and_now_and_then_else() -> None:
    speed = LoadSpeed()
    speed.measure(100, 1.0)
    assert speed.tokens_per_second == 100
    assert speed.is_faster(100, 1.1)
    assert speed.is_faster(100, None)
    assert [speed.is_faster(100, 0.9) for _ in range(32)] == [False] * 15 + [True] + [False] * 15 + [True]


def test_the_newest_measurement_weighs_a_quarter() -> None:
    speed = LoadSpeed()
    speed.measure(1, 1.0)
    speed.measure(1, 3.0)
    assert not speed.is_faster(2, 2.9)
    assert speed.is_faster(2, 3.1)
