"""`python -m tests.e2e.kill_stores [KILLS] [SEED] [LOG]`: servers with a KV store die while conversations come back.

The device has room for few of them, so most turns load blocks, and save others. A server's worker, core and fork server
are killed at random instants, and amid loads and saves; then the whole server, and another one goes on with its folder.
Prints a JSON object for each server, then one of all: what was asked and killed, then what must be 0, or the exit code
is 1. LOG is a file that takes what servers log.
"""

import json
import os
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

import psutil

from tests.e2e.chaos_census import segments, unheld
from tests.e2e.chaos_clients import Account, Clients
from tests.e2e.server import Server, until
from tests.e2e.store_conversations import BLOCK_BYTES, Conversations, converse, write_model
from tests.e2e.store_watch import AT_REST, LOCK_BYTES, CoreFigures, Holdings, Stats, folder_bytes, strays, take
from tests.e2e.survival_streams import Streams, compare
from tests.e2e.titles import CORE, WORKER, find

KILLS = 200
CONVERSATIONS, CLIENTS = 24, 8
DEVICE_BLOCKS = 96  # of which one conversation takes up to 22
# Kills of processes in one server's life, before it is killed itself: each within a minute makes the next restart wait.
PER_LIFE = 4
VICTIMS = {WORKER: 5, CORE: 3}
LONGEST_DELAY = 1.0  # seconds until a kill that waits for nothing else
LOOKS = 500  # at a core, for a load or save under way
STARTS = 3  # until a server that does not become ready has a fault of its own
CENSUS_LOOKS, CENSUS_PAUSE = 40, 0.25  # at what a server holds at rest, and seconds between two
RECOVERY_LIMIT = 60.0  # seconds that clients wait for the next tokens
# Instants of kills: a predicate on the core's figures, by name. What holds is looked for until LOOKS.
INSTANTS: dict[str, Callable[[Stats], bool]] = {
    "loading": lambda stats: stats["num_loading"] > 0,
    "saving": lambda stats: stats["num_saving_blocks"] > 0,
}
FLAGS = ("--max-num-seqs", "8", "--max-num-batched-tokens", "256", "--max-restarts", "1000", "--dtype", "float32")


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else KILLS
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    with open(sys.argv[3] if len(sys.argv) > 3 else os.devnull, "w") as log_file:
        record = run(kills, seed, log_file, report=_print)
    _print(record)
    sys.exit(int(any(record["must_be_0"].values())))


def _print(record: dict[str, Any]) -> None:
    print(json.dumps(record), flush=True)


def run(
    num_kills: int,
    seed: int,
    log_file: IO[str],
    conversations: int = CONVERSATIONS,
    report: Callable[[dict[str, Any]], None] = lambda record: None,
) -> dict[str, Any]:
    """So many kills of servers on one folder, and what was counted; `report` is told after each server."""
    shared_memory = segments()
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        (folder / "sockets").mkdir()
        model = write_model(folder / "model")
        with Server(model, *FLAGS, "--no-enable-prefix-caching", log_file=log_file) as without:
            known = converse(without, conversations, seed)
        begun = time.monotonic()
        lives = _Lives(folder, model, known, seed, log_file)
        stack.callback(lives.stop)
        while lives.num_kills < num_kills:
            lives.live(min(PER_LIFE, num_kills - lives.num_kills - 1))
            report({"kills": lives.num_kills, **lives.must_be_0(), "found": lives.found})
        lives.end()
        faults = lives.account
        return {
            "name": "kills with a KV store",
            "seed": seed,
            "seconds": round(time.monotonic() - begun),
            "kills": dict(lives.killed),
            "amid": dict(lives.amid),
            "servers": lives.num_servers,
            "failed_starts": lives.failed_starts,
            "requests": dict(faults.requests),
            "tokens": faults.tokens,
            "resumed": faults.resumed,
            "refused": faults.refused,
            "stored_blocks": known.num_blocks,
            "figures": dict(lives.figures),
            "failed": dict(faults.failed),
            "blamed": dict(faults.blamed),
            "differing": dict(faults.differing),
            "found": lives.found,
            "must_be_0": {
                **lives.must_be_0(),
                "wrong_afterwards": lives.wrong_afterwards,
                "files_left": len(list((folder / "sockets").iterdir())),
                "shared_memory_segments": len(unheld(segments() - shared_memory)),
            },
        }


class _Lives:
    """Servers on one folder and one port, one after another. `found` says in words what should not be there."""

    def __init__(self, folder: Path, model: str, known: Conversations, seed: int, log_file: IO[str]) -> None:
        self.account = Account()
        self.killed: Counter[str] = Counter()
        self.amid: Counter[str] = Counter()
        self.figures: Counter[str] = Counter()
        self.found: list[str] = []
        self.num_servers = self.failed_starts = 0
        self.wrong_afterwards = 0
        self._choose = random.Random(seed)
        self._seed = seed
        self._log_file = log_file
        self._store, self._sockets = folder / "blocks", folder / "sockets"
        # Less than what is saved, so that the oldest segments go all the time.
        self._capacity = known.num_blocks * BLOCK_BYTES * 3 // 4
        self._flags = [model, *FLAGS, "--port", str(_free_port()), "--num-gpu-blocks-override", str(DEVICE_BLOCKS)]
        self._flags += ["--kv-cache-dir", str(self._store), "--kv-cache-disk-size", str(self._capacity)]
        self._flags += ["--flight-recorder-dir", str(folder / "crashes")]
        self._known = known
        self._server = self._start()

    @property
    def num_kills(self) -> int:
        return self.killed.total()

    def must_be_0(self) -> dict[str, int]:
        """What went wrong so far."""
        account = self.account
        return {
            "lost_tokens": account.lost,
            "repeated_tokens": account.repeated,
            "failed_or_differing": account.num_blameworthy,
            "left_behind": len(self.found),
        }

    def live(self, num_kills: int) -> None:
        """Kill processes of the server under its clients, look at what is left, then kill all of it."""
        with CoreFigures(self._sockets) as figures:
            self._rest(figures)
            before = take(self._server)
            with self._clients() as clients:
                clients.wait_for_events(CLIENTS, RECOVERY_LIMIT)
                for _ in range(num_kills):
                    self._kill_one(figures)
                    clients.wait_for_events(2 * CLIENTS, RECOVERY_LIMIT)
            self._rest(figures)
            self._compare(before)
            with self._clients() as clients:
                clients.wait_for_events(CLIENTS, RECOVERY_LIMIT)
                self._wait_for_instant(figures)
                self._kill_server()
                self._server = self._start()
        self.figures.update(figures.totals)

    def end(self) -> None:
        """Ask for each turn once more, and end the last server as its operator would."""
        requests = [known.request for known in self._known.turns]
        for start in range(0, len(requests), CLIENTS):
            seen = Streams(self._server.address, requests[start : start + CLIENTS]).join()
            twins = [known.twin for known in self._known.turns[start : start + CLIENTS]]
            self.wrong_afterwards += sum(any(compare(*pair)) for pair in zip(twins, seen, strict=True))
        with CoreFigures(self._sockets) as figures:
            self._rest(figures)
        self.figures.update(figures.totals)
        self._server.tree = self._server.processes()
        self.stop()
        self._look_for_orphans(self._server.tree)
        if self._server.process.returncode:
            self.found.append(f"exit code {self._server.process.returncode}")

    def stop(self) -> None:
        """End the server."""
        self._server.stop()

    def _start(self) -> Server:
        self.num_servers += 1
        # Every second one also has memory on the host, which outlives its workers and cores.
        host = ("--kv-offloading-size", f"{64 * BLOCK_BYTES >> 20}MiB") if self.num_servers % 2 == 0 else ()
        environment = {"TMPDIR": str(self._sockets)}
        for starts_left in reversed(range(STARTS)):
            try:
                return Server(*self._flags, *host, environment=environment, log_file=self._log_file).__enter__()
            except AssertionError:  # On a busy machine its processes may be taken for silent.
                self.failed_starts += 1
                if not starts_left:
                    raise
        raise AssertionError

    def _clients(self) -> Clients:
        self._seed += 1
        clients = Clients(self._server.address, self._known.turns, CLIENTS, self._seed)
        clients.account = self.account
        return clients

    def _wait_for_instant(self, figures: CoreFigures) -> None:
        """Let a while pass, and sometimes wait for a load or save to be under way."""
        time.sleep(self._choose.random() * LONGEST_DELAY)
        name = self._choose.choice(["any", "loading", *INSTANTS])
        if name in INSTANTS and not figures.wait_for(INSTANTS[name], LOOKS):
            name = f"not {name}"
        self.amid[name] += 1

    def _kill_one(self, figures: CoreFigures) -> None:
        (title,) = self._choose.choices(list(VICTIMS), list(VICTIMS.values()))
        self._wait_for_instant(figures)
        until(lambda: bool(find(self._server.process.pid, title)), f"a process with the title {title}")
        for process in find(self._server.process.pid, title):
            process.kill()
        self.killed[title] += 1

    def _kill_server(self) -> None:
        """All of its processes, or the one that supervises them alone: the others end by themselves."""
        tree = self._server.processes()
        is_whole = self._choose.random() < 0.5
        victims = self._choose.sample(tree, len(tree)) if is_whole else tree[:1]
        for process in victims:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.killed["whole server" if is_whole else "supervisor"] += 1
        self._server.wait()
        self._look_for_orphans(tree)
        self._look_into_folder()

    def _look_for_orphans(self, tree: Sequence[psutil.Process]) -> None:
        _, alive = psutil.wait_procs(tree, timeout=RECOVERY_LIMIT)
        self.found += [f"a process that lives on: {process}" for process in alive]

    def _rest(self, figures: CoreFigures) -> None:
        """Wait until nothing is under way; what never ends is found."""
        seen: list[Stats] = []

        def rests() -> bool:
            seen.append(figures.now())
            return bool(seen[-1]) and not any(seen[-1][name] for name in AT_REST)

        try:
            until(rests, "the server to come to rest")
        except AssertionError:
            left = {name: seen[-1].get(name) for name in AT_REST}
            self.found.append(f"a server that does not come to rest: {left}")
        self._look_into_folder()

    def _look_into_folder(self) -> None:
        """The bound holds at every moment, and a process that dies leaves no file of its own."""
        if (size := folder_bytes(self._store)) > self._capacity + LOCK_BYTES:
            self.found.append(f"{size} bytes in the folder, of {self._capacity}")
        self.found += [f"a stray file: {name}" for name in strays(self._store)]

    def _compare(self, before: Holdings) -> None:
        """Hold what the server has now against what it had before its processes died."""
        # What comes and goes, as the last connections of clients do, is no leak: the last look counts.
        for _ in range(CENSUS_LOOKS):
            grown = _growth(before, take(self._server))
            if not grown:
                return
            time.sleep(CENSUS_PAUSE)
        self.found += grown


def _growth(before: Holdings, after: Holdings) -> list[str]:
    """What there is more of, in words."""
    grown = [
        f"{title}: {number} descriptors, before {before.descriptors.get(title)}"
        for title, number in after.descriptors.items()
        if number > before.descriptors.get(title, 0)
    ]
    if after.memories > before.memories:
        grown.append(f"{after.memories} descriptors of host memory, before {before.memories}")
    if after.deleted_bytes:
        grown.append(f"{after.deleted_bytes} bytes in segments that are deleted")
    return grown


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


if __name__ == "__main__":
    main()
