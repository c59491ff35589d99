"""Several cores behind one placement: throughput beside one core's, cached prefixes, fairness. In simulated time."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random

from benchmarks.engine.simulated_replicas import ByPrefix, Chooser, RoundRobin, SimulatedRequest, Simulation
from benchmarks.record import Record

STREAMS = 2000
SLOTS = 256
CHOOSERS: dict[str, Callable[[int], Chooser]] = {"prefix": ByPrefix, "round-robin": RoundRobin}
# Prefixes that many requests share: more than the cache of one of four cores holds, and less than those of all.
PREFIXES = 200
PREFIX_LENGTH = 1008
BLOCKS = 6000
# Streams of each tenant: a heavy one, and light ones, each of which still has more than its share of streams.
TENANTS = (400, *[24] * 7)


def throughput() -> Iterator[Record]:
    for name, choose in CHOOSERS.items():
        alone = 0.0
        for num_cores in (1, 2, 4):
            value = serve_streams(num_cores, choose(num_cores))
            alone = alone or value
            record: Record = {"name": "replicas.throughput", "value": round(value), "unit": "tokens/s"}
            yield record | {"cores": num_cores, "placement": name, "linear": round(value / alone / num_cores, 3)}


def unequal_cores() -> Iterator[Record]:
    """The slowest of 100 requests, with three cores and one that takes twice as long."""
    for name, choose in CHOOSERS.items():
        simulation = make_streams(4, choose(4), slowness=2.0)
        simulation.run(until=45.0)
        seconds = sorted(took for ended, took in simulation.durations if ended > 15.0)
        value = round(seconds[len(seconds) * 99 // 100], 1)
        record: Record = {"name": "replicas.unequal_cores", "value": value, "unit": "s"}
        yield record | {"cores": 4, "placement": name}


def added_core() -> Iterator[Record]:
    record: Record = {"name": "replicas.added_core", "value": round(seconds_to_share(), 2), "unit": "s"}
    yield record | {"cores": 3, "streams": STREAMS}


def prefix_hits() -> Iterator[Record]:
    for load, serve in (("system prompts", serve_prefixes), ("conversations", serve_conversations)):
        whole = serve(1, RoundRobin(1), num_blocks=4 * BLOCKS, slots=4 * SLOTS)
        for name, choose in CHOOSERS.items():
            value = serve(4, choose(4), num_blocks=BLOCKS, slots=SLOTS)
            record: Record = {"name": "replicas.prefix_hits", "value": round(value, 3), "unit": "share of tokens"}
            yield record | {"cores": 4, "load": load, "placement": name, "of_one_core": round(value / whole, 3)}


def fairness() -> Iterator[Record]:
    choosers: dict[str, Chooser] = {
        "prefix": ByPrefix(4),
        "prefix, which ignores tenants": ByPrefix(4, ignores_tenants=True),
        "round-robin": RoundRobin(4),
    }
    for name, chooser in choosers.items():
        served = serve_tenants(4, chooser, TENANTS)
        record: Record = {"name": "replicas.fairness", "value": round(jain_index(served), 4), "unit": "Jain's index"}
        record |= {"cores": 4, "tenants": len(served), "placement": name}
        yield record | {"least_share": round(min(served) * len(served) / sum(served), 3)}


FIGURES: dict[str, Callable[[], Iterator[Record]]] = {
    "replicas.throughput": throughput,
    "replicas.unequal_cores": unequal_cores,
    "replicas.added_core": added_core,
    "replicas.prefix_hits": prefix_hits,
    "replicas.fairness": fairness,
}


def serve_streams(num_cores: int, chooser: Chooser) -> float:
    """Output tokens a second of 2,000 streams."""
    simulation = make_streams(num_cores, chooser)
    simulation.run(until=15.0)
    simulation.run(until=45.0)
    return simulation.throughput(since=15.0)


def seconds_to_share() -> float:
    """Seconds from the addition of a third core to two busy ones until it has nine tenths of a third of the tokens."""
    chooser = ByPrefix(2)
    simulation = make_streams(2, chooser)
    simulation.run(until=15.0)
    chooser.add_core()
    simulation.add_core()
    while simulation.now < 45.0:
        since = simulation.now
        simulation.run(until=since + 0.25)
        counts = [core.num_tokens(since) for core in simulation.cores]
        if counts[2] > 0.9 * sum(counts) / 3:
            break
    return simulation.now - 15.0


def make_streams(num_cores: int, chooser: Chooser, slowness: float = 1.0) -> Simulation:
    """2,000 streams, each with a new request after each answer. The last core takes `slowness` times as long."""
    simulation = Simulation(num_cores, chooser, slots=SLOTS, num_blocks=1 << 14)
    simulation.cores[-1].slowness = slowness
    random = Random(0)

    def ask() -> None:
        prompt = tokens(random, random.randrange(50, 400))
        simulation.submit(SimulatedRequest(prompt, output_length(random)), ask)

    for _ in range(STREAMS):
        ask()
    return simulation


def serve_prefixes(num_cores: int, chooser: Chooser, *, num_blocks: int, slots: int) -> float:
    """The share of prompt tokens that were cached: each begins with one of many prefixes, a few of them frequent."""
    simulation = Simulation(num_cores, chooser, slots=slots, num_blocks=num_blocks)
    random = Random(0)
    prefixes = [tokens(random, PREFIX_LENGTH) for _ in range(PREFIXES)]
    weights = [(rank + 1) ** -0.5 for rank in range(PREFIXES)]

    def ask() -> None:
        (prefix,) = random.choices(prefixes, weights)
        prompt = prefix + tokens(random, random.randrange(16, 200))
        simulation.submit(SimulatedRequest(prompt, output_length(random)), lambda: simulation.at(0.5, ask))

    for _ in range(256):
        simulation.at(5 * random.random(), ask)
    return hit_rate(simulation)


def serve_conversations(num_cores: int, chooser: Chooser, *, num_blocks: int, slots: int) -> float:
    """The cached share of prompt tokens in conversations, in which each prompt continues the answer before."""
    simulation = Simulation(num_cores, chooser, slots=slots, num_blocks=num_blocks)
    random = Random(0)

    def say(prompt: bytes) -> None:
        if len(prompt) > 4 * 2000:
            prompt = b""  # another one begins
        prompt = prompt + tokens(random, random.randrange(50, 300))
        num_outputs = output_length(random)

        def think() -> None:
            said = prompt + array("i", [7]).tobytes() * num_outputs
            simulation.at(random.expovariate(1 / 4), lambda: say(said))

        simulation.submit(SimulatedRequest(prompt, num_outputs), think)

    for _ in range(PREFIXES):
        simulation.at(5 * random.random(), lambda: say(b""))
    return hit_rate(simulation)


def serve_tenants(num_cores: int, chooser: Chooser, streams: Sequence[int], seconds: float = 30.0) -> list[int]:
    """Output tokens of each tenant, with `streams` streams each, whose prompts begin with a prefix of the tenant.

    Each prefix attracts its tenant to one core. With long queues the total work on cores differs little, so that a
    light tenant stays there, beside others.
    """
    simulation = Simulation(num_cores, chooser, slots=16, num_blocks=2000, policy="fair")
    random = Random(0)
    prefixes = [tokens(random, PREFIX_LENGTH) for _ in streams]

    def ask(tenant: int) -> None:
        prompt = prefixes[tenant] + tokens(random, random.randrange(16, 200))
        request = SimulatedRequest(prompt, output_length(random), f"tenant {tenant}")
        simulation.submit(request, lambda: ask(tenant))

    for tenant, count in enumerate(streams):
        for _ in range(count):
            simulation.at(3 * random.random(), partial(ask, tenant))
    simulation.run(until=10.0)
    before = simulation.tokens_by_tenant.copy()
    simulation.run(until=10.0 + seconds)
    served = simulation.tokens_by_tenant - before
    return [served[f"tenant {tenant}"] for tenant in range(len(streams))]


def jain_index(served: Sequence[int]) -> float:
    """Jain's index of fairness: 1 if all have the same, and 1 / n if one of n has everything."""
    return sum(served) ** 2 / (len(served) * sum(count**2 for count in served))


def hit_rate(simulation: Simulation) -> float:
    """The hit rate after the caches have filled."""
    simulation.run(until=30.0)
    hits_before, queries_before = simulation.prefix_counts()
    simulation.run(until=90.0)
    hits, queries = simulation.prefix_counts()
    return (hits - hits_before) / (queries - queries_before)


def tokens(random: Random, number: int) -> bytes:
    return array("i", (random.randrange(1 << 20) for _ in range(number))).tobytes()


def output_length(random: Random) -> int:
    return min(400, 1 + int(random.expovariate(1 / 100)))
