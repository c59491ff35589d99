"""The cost of poison: how many each request has ended, and whether others were at work there."""

from tests.cluster.damage import BusyCores, poison_damage
from tests.cluster.poison import Death, Victim

ADDRESSES = {100: "tcp://a", 200: "tcp://b"}
SEEN = [
    BusyCores(1.0, {"tcp://a": 1, "tcp://b": 2}),
    BusyCores(2.0, {"tcp://a": 3, "tcp://b": 2}),  # Another core has taken the first one's place.
    BusyCores(3.0, {"tcp://a": 3}),
]


def death(request: str, supervisor: int, time: float, victim: Victim = "core") -> Death:
    return Death(request, victim, 1, supervisor, time)


def test_a_core_is_healthy_that_worked_for_others_from_the_first_death_to_its_own() -> None:
    deaths = [death("one", 100, 1.5), death("one", 100, 2.5), death("one", 200, 3.5)]
    assert poison_damage(deaths, SEEN, ADDRESSES) == {"most_workers": 0, "most_cores": 3, "most_healthy_cores": 1}
    deaths[2] = death("one", 200, 2.5)
    assert poison_damage(deaths, SEEN, ADDRESSES)["most_healthy_cores"] == 2


def test_each_request_counts_by_itself() -> None:
    deaths = [death("one", 100, 1.5), death("two", 200, 1.6)]
    deaths += [death("three", 200, time, "worker") for time in (1.7, 1.8)]
    assert poison_damage(deaths, SEEN, ADDRESSES) == {"most_workers": 2, "most_cores": 1, "most_healthy_cores": 1}


def test_what_nobody_saw_is_not_healthy() -> None:
    assert poison_damage([death("one", 100, 0.5), death("one", 300, 1.5)], SEEN, ADDRESSES)["most_healthy_cores"] == 0
