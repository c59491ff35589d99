"""`python -m tests.e2e.chaos [MINUTES] [SEED] [LOG]`: everything goes wrong at random under a live server.

Many clients use it meanwhile. Counts from outside, and prints one JSON object: what was asked and what went wrong, then
what must be 0, or the exit code is 1. A request that was alone with workers or cores that died fails by design, and is
told in `blamed` only. SEED draws the faults and the requests; LOG is a file that takes what the server logs.
"""

import contextlib
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import httpx
import psutil

from tests.e2e import chaos_census, faulty_processor
from tests.e2e.chaos_census import Census
from tests.e2e.chaos_clients import Clients, Known
from tests.e2e.chaos_faults import Faults
from tests.e2e.kills import twins_of, with_stop_string
from tests.e2e.server import Server, until
from tests.e2e.survival_streams import Request, Streams, compare

FLAGS = ["--api-server-count", "2", "--max-num-batched-tokens", "64", "--max-restarts", "1000"]
NUM_CLIENTS = 12
LENGTHS = (12, 40, 120)  # tokens of the requests
MEAN_PAUSE = 3.0  # seconds between two faults
AMID_RECOVERY = 0.2  # of the faults are followed by another one whether or not clients have had anything since
RECOVERY_LIMIT = 30.0  # seconds that the others wait for that
WATCH_INTERVAL = 0.25
REST = 20  # times that a server at rest is counted


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    with open(sys.argv[3] if len(sys.argv) > 3 else os.devnull, "w") as log_file:
        record = run(minutes * 60, seed, log_file)
    print(json.dumps(record), flush=True)
    sys.exit(int(any(record["must_be_0"].values())))


def run(seconds: float, seed: int, log_file: IO[str]) -> dict[str, Any]:
    """One server, faults for so many seconds, and what was counted."""
    with tempfile.TemporaryDirectory() as folder:
        flag = Path(folder) / "flag"
        environment = faulty_processor.install(Path(folder) / "packages")
        with Server(*FLAGS, environment=environment, log_file=log_file, warm_spares=True) as server:
            pool = known_requests(server, flag)
            before = at_rest(server)
            begun = time.monotonic()
            faults = Faults(server.process.pid, flag, seed)
            with watched(server) as seen, Clients(server.address, pool, NUM_CLIENTS, seed) as clients:
                choose = random.Random(seed)
                while time.monotonic() < begun + seconds:
                    time.sleep(choose.expovariate(1 / MEAN_PAUSE))
                    faults.one()
                    if choose.random() > AMID_RECOVERY:
                        clients.wait_for_events(NUM_CLIENTS, RECOVERY_LIMIT)
            ended = time.monotonic()
            flag.unlink(missing_ok=True)
            after = at_rest(server)
            blocks = server.metric("vllm:kv_cache_usage_perc")
            still_right = [compare(known.twin, Streams(server.address, [known.request]).join()[0]) for known in pool]
            strays = chaos_census.alive(seen, psutil.Process(server.process.pid))
            server.tree = server.processes()
        # The kernel gets its time to end them before the others are looked at.
        orphans = {process.pid for process in [*server.orphans(), *strays, *chaos_census.alive(seen, None)]}
        leaks = chaos_census.leaks(before, after)
        account = clients.account
        return {
            "name": "chaos",
            "seed": seed,
            "seconds": round(ended - begun),
            "requests": dict(account.requests),
            "tokens": account.tokens,
            "resumed": account.resumed,
            "refused": account.refused,
            "faults": dict(faults.counted),
            "failed": dict(account.failed),
            "blamed": dict(account.blamed),
            "differing": dict(account.differing),
            "grown": chaos_census.growth(before, after),
            "must_be_0": {
                "lost_tokens": account.lost,
                "repeated_tokens": account.repeated,
                "failed_or_differing": account.num_blameworthy,
                "wrong_afterwards": sum(bool(any(difference)) for difference in still_right),
                "exit_code": server.process.returncode,
                "orphans": len(orphans) + leaks.processes,
                "leaked_blocks": blocks,
                "sockets": leaks.sockets,
                "shared_memory_segments": leaks.segments,
                "file_descriptors": leaks.descriptors,
            },
        }


def known_requests(server: Server, flag: Path) -> list[Known]:
    """The mixed requests in several lengths, and one of each length that can be made to end its worker."""
    pool = []
    for length in LENGTHS:
        requests = with_stop_string(server.address, length)
        twins = twins_of(server.address, requests)
        pool += [Known(request, twin) for request, twin in zip(requests, twins, strict=True)]
        # What it is given changes nothing, so its twin is that of the greedy one.
        greedy = requests[0]
        body = {**greedy.body, "vllm_xargs": {faulty_processor.NAME: {"flag": str(flag)}}}
        pool.append(Known(Request("raises", greedy.path, body), twins[0]))
    return pool


def at_rest(server: Server) -> Census:
    """Counts of a server that has nothing to do, once nothing of it starts or ends any more."""
    until(lambda: has_nothing_to_do(server), "the server to come to rest")
    counts = [chaos_census.take(server.process.pid)]
    while len(counts) < REST or counts[-1].titles.keys() != counts[-REST].titles.keys():
        time.sleep(WATCH_INTERVAL)
        counts.append(chaos_census.take(server.process.pid))
    return chaos_census.lowest(counts[-REST:])


def has_nothing_to_do(server: Server) -> bool:
    """Whether the server takes requests, and has none."""
    try:
        with server.http() as http:
            ready = http.get("/health/ready").status_code == httpx.codes.OK
        return ready and not server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting")
    except (httpx.TransportError, AssertionError):  # Its process ends just now, or knows of no core yet.
        return False


@contextlib.contextmanager
def watched(server: Server) -> Iterator[set[psutil.Process]]:
    """Every process that is seen below the supervisor while the block runs."""
    seen: set[psutil.Process] = set()
    stopping = threading.Event()

    def watch() -> None:
        while not stopping.wait(WATCH_INTERVAL):
            seen.update(server.processes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        stopping.set()
        thread.join()


if __name__ == "__main__":
    main()
