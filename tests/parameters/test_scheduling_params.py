import pytest

from pyllm import SchedulingParams
from pyllm.errors import RequestError
from pyllm.parameters.scheduling_params import with_priority


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", 2**31),
        ("priority", -(2**31) - 1),
        *((name, value) for name in ("timeout", "ttft_target", "tpot_target") for value in (0.0, -1.0)),
        ("timeout", float("nan")),
        ("data_parallel_rank", -1),
        ("timeout", float("inf")),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(RequestError, match=name) as refused:
        SchedulingParams(**{name: value})
    assert refused.value.parameter == name


@pytest.mark.parametrize("value", ["", "24h", "forever" * 100, None, 5])
def test_a_retention_that_there_is_not_is_refused_with_those_that_there_are(value: object) -> None:
    with pytest.raises(RequestError, match="kv_cache_retention must be") as refused:
        SchedulingParams(kv_cache_retention=value)  # type: ignore[arg-type]
    assert len(str(refused.value)) < 200
    if isinstance(value, str):
        assert "none, default or long" in str(refused.value)
    assert SchedulingParams(kv_cache_retention="long").kv_cache_retention == "long"


def test_misspelt_name_fails() -> None:
    with pytest.raises(RequestError, match="no 'time_out': did you mean 'timeout'"):
        SchedulingParams(time_out=3)  # type: ignore[call-arg]


def test_a_priority_of_its_own_takes_the_place_of_the_other() -> None:
    scheduling = SchedulingParams(priority=5, tenant="acme")
    assert with_priority(scheduling, None) == scheduling
    assert with_priority(scheduling, 0) == SchedulingParams(tenant="acme")
    with pytest.raises(RequestError, match="priority"):
        with_priority(scheduling, 2**31)
