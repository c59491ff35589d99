"""Streams of one client on three cores: a worker, a core and a whole machine's processes are killed under them.

`python -m tests.cluster` does much more of it, on hosts with links that are cut.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyllm import EngineClient
from tests.cluster.load import Load, twins_of
from tests.cluster.machine import Machine
from tests.cluster.pool import make_pool
from tests.tiny_model import write_tiny_model
from tests.waiting import until

NUM_STREAMS = 40
POOL_SIZE = 24
CONTEXT = 2048
LOOK = 0.02


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    model = write_tiny_model(tmp_path / "model", heads=4, kv_heads=2, max_position_embeddings=CONTEXT)
    arguments = [model, "--no-warm-spares", "--kv-cache-memory-bytes", "16MiB"]
    started = [Machine(f"machine-{number}", None, arguments, tmp_path, {}) for number in range(3)]
    try:
        for machine in started:
            machine.start()
        for machine in started:
            machine.wait_until_ready()
        yield started
    finally:
        for machine in started:
            machine.kill()


@pytest.mark.full
async def test_streams_go_on_elsewhere_with_the_tokens_of_their_twins(machines: list[Machine]) -> None:
    addresses = [machine.address for machine in machines]
    client = await EngineClient.connect(addresses, placement="round-robin")
    pool = make_pool(POOL_SIZE, seed=1)
    load = Load(client.submit, await twins_of(client.submit, pool), pool, NUM_STREAMS, seed=1)
    load.begin()

    async def go_on() -> None:
        """Until every stream that has begun has had something more, and as many as there are have ended."""
        now, due = time.monotonic(), load.account.streams.total() + NUM_STREAMS
        await until(lambda: load.has_recovered(now) and load.account.streams.total() >= due, LOOK)

    await go_on()
    assert machines[0].kill_worker()
    await go_on()
    assert client.counts.num_resubmitted_requests == 0  # That core sees to its streams itself.
    assert machines[1].kill_core()
    await until(lambda: not client.cores[1].condition.ready, LOOK)  # What was on its way has come by then.
    await go_on()
    resubmitted = client.counts.num_resubmitted_requests
    assert resubmitted > 0
    await until(lambda: client.cores[2].num_requests, LOOK)
    machines[2].kill()
    await until(lambda: not client.cores[2].condition.ready, LOOK)
    await go_on()
    assert client.counts.num_resubmitted_requests > resubmitted
    assert await load.end(60.0) == 0
    assert not any(load.account.wrong.values()), (load.account.wrong, load.account.different, load.account.failed)
    client.close()
