"""`python -m tests.cluster [--seconds S] [--seed N] [--streams N]`: streams of a cluster under faults, and their twins.

Machines are network namespaces with a core each, and the client is in another one. Prints a JSON object for each kind
of fault, then one of the whole run; where something of `must_be_0` is not, the exit code is 1. Needs root.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyllm import EngineClient
from pyllm.wire import curve
from tests.cluster import poison
from tests.cluster.damage import poison_damage
from tests.cluster.faults import Faults, pauses_by_fault
from tests.cluster.load import Load, twins_of
from tests.cluster.machine import DEADLINE, Machine
from tests.cluster.network import Network
from tests.cluster.pool import make_pool
from tests.tiny_model import write_tiny_model

CLIENT = "client"
CONTEXT = 2048
POOL_SIZE = 200
QUIET_SECONDS = 3.0  # before the first fault
END_LIMIT = 300.0  # seconds that the streams have to end after the last fault
FLAGS = ("--max-num-seqs", "256", "--kv-cache-memory-bytes", "64MiB", "--max-restarts", "1000")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long faults are done")
    parser.add_argument("--seed", type=int, default=None, help="of faults and requests; default: drawn")
    parser.add_argument("--streams", type=int, default=500, help="at any time")
    parser.add_argument("--placement", choices=("prefix", "round-robin", "failover"), default="prefix")
    parser.add_argument("--machines", type=int, default=3)
    parser.add_argument("--kinds", nargs="*", help="of faults; default: all")
    parser.add_argument("--logs", type=Path, help="a folder for what the machines log")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # Nothing is left behind.
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 32)
    names = [f"machine-{number}" for number in range(options.machines)]
    with tempfile.TemporaryDirectory() as temporary, Network([*names, CLIENT]) as network:
        folder = Path(temporary)
        network.hosts[CLIENT].enter()
        curve.generate(folder / "keys")
        model = write_tiny_model(folder / "model", heads=4, kv_heads=2, max_position_embeddings=CONTEXT)
        environment = poison.install(folder / "packages")
        logs = options.logs or folder
        logs.mkdir(parents=True, exist_ok=True)
        arguments = [model, *FLAGS, "--curve-keys", str(folder / "keys")]
        machines = [Machine(name, network.hosts[name], arguments, logs, environment) for name in names]
        try:
            for machine in machines:
                machine.start()
            for machine in machines:
                machine.wait_until_ready()
            result = asyncio.run(run(machines, options, folder))
            result["must_be_0"]["exit_codes"] = sum(machine.stop() != 0 for machine in machines)
        finally:
            for machine in machines:
                machine.kill()
    print(json.dumps(result), flush=True)
    sys.exit(int(any(result["must_be_0"].values())))


async def run(machines: list[Machine], options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The twins, then the load under faults; gives what was counted."""
    addresses = [machine.address for machine in machines]
    client = await EngineClient.connect(addresses, placement=options.placement, timeout=DEADLINE, keys=folder / "keys")
    pool = make_pool(POOL_SIZE, options.seed)
    twins = await twins_of(client.submit, pool)
    load = Load(client.submit, twins, pool, options.streams, options.seed)
    record = folder / "deaths.jsonl"
    faults = Faults(machines, client, load, record, options.seed)
    begun = time.monotonic()
    load.begin()
    await asyncio.sleep(QUIET_SECONDS)
    await faults.run(options.seconds, options.kinds or list(faults.kinds))
    num_left = await load.end(END_LIMIT)
    seconds = time.monotonic() - begun
    account, counts = load.account, client.counts
    client.close()
    table = pauses_by_fault(faults.done, account.pauses)
    for kind, row in table.items():
        print(json.dumps({"name": "pauses", "fault": kind} | row), flush=True)
    supervisors = {pid: machine.address for machine in machines for pid in machine.supervisors}
    cost = poison_damage(poison.deaths(record), faults.observer.seen, supervisors)
    blamed = sum(number for kind, number in account.blamed.items() if kind.startswith("poison"))
    return {
        "name": "cluster",
        "seed": options.seed,
        "seconds": round(seconds),
        "streams": dict(account.streams),
        "tokens": account.tokens,
        "faults": {kind: row["faults"] for kind, row in table.items() if kind != "none"},
        "longest_pause_s": round(max((pause.end - pause.begin for pause in account.pauses), default=0.0), 2),
        "resubmissions": counts.num_resubmitted_requests,
        "cores_met": counts.num_core_connections,
        "poison": cost,
        "failed": dict(account.failed),
        "different": dict(account.different),
        "must_be_0": {
            **account.wrong,
            "poison_not_blamed": faults.num_poisoned - blamed,
            "healthy_cores_beyond_one_by_poison": max(0, cost["most_healthy_cores"] - 1),
            "without_end": num_left,
            "machines_that_ended": sum(not machine.is_started for machine in machines),
        },
    }


if __name__ == "__main__":
    main()
