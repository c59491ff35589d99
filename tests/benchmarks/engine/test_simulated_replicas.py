from array import array

from benchmarks.engine.replicas import serve_tenants
from benchmarks.engine.simulated_replicas import ByPrefix, Chooser, RoundRobin, SimulatedRequest, Simulation


def make_simulation(chooser: Chooser) -> Simulation:
    return Simulation(2, chooser, slots=4, num_blocks=64)


def make_request(prefix: int, number: int) -> SimulatedRequest:
    prompt = array("i", [prefix, *range(40), number]).tobytes()
    return SimulatedRequest(prompt, max_tokens=3, tenant=f"tenant {prefix}")


def test_every_request_gets_its_tokens_in_simulated_time():
    simulation, ended = make_simulation(RoundRobin(2)), []
    for number in range(3):
        simulation.submit(make_request(number % 2, number), lambda: ended.append(simulation.now))
    simulation.run(until=60.0)
    assert (simulation.now, len(ended), simulation.tokens_by_tenant) == (60.0, 3, {"tenant 0": 6, "tenant 1": 3})
    assert [core.num_tokens(0.0) for core in simulation.cores] == [6, 3]
    assert simulation.throughput(since=0.0) == 9 / 60
    assert [took for _, took in simulation.durations] == ended
    # One step for the prompt's token, two more for the others.
    assert 3 * 0.008 < ended[0] < 0.1


def test_a_placement_hears_what_cores_have_cached_and_round_robin_does_not():
    hits = []
    for chooser in (ByPrefix(2), RoundRobin(2)):
        simulation = make_simulation(chooser)
        for number in range(6):
            # Each prefix comes back to the core that it was not on, in turns.
            simulation.submit(make_request(number // 2, number), lambda: None)
            simulation.run(until=float(number + 1))
        hits.append(simulation.prefix_counts()[0])
    assert hits == [3 * 32, 0]


def test_light_tenants_have_their_part_of_all_cores_unless_placement_ignores_tenants():
    fair, unfair = (
        serve_tenants(2, ByPrefix(2, ignores_tenants=ignores), (80, 20, 20), seconds=3.0) for ignores in (False, True)
    )
    assert min(fair) * 3 > 0.9 * sum(fair)
    assert min(unfair) * 3 < 0.7 * sum(unfair)


def test_a_core_that_is_added_gets_requests():
    chooser = ByPrefix(2)
    simulation = make_simulation(chooser)
    chooser.add_core()
    simulation.add_core()
    for number in range(3):
        simulation.submit(make_request(number, number), lambda: None)
    simulation.run(until=10.0)
    assert [core.num_tokens(0.0) for core in simulation.cores] == [3, 3, 3]
