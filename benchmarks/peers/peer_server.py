"""One server under measurement: started on a free port, watched from outside, ended by its own pid.

Knows no workload; the peers must answer `/health` and OpenAI's completions.
"""

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

MODEL = "smol"  # the model's name in every server
READY_LIMIT = 600.0  # seconds; one peer compiles its model before it is ready
STOP_LIMIT = 60.0
CHILDREN_LIMIT = 2.0  # after their parent's end
POLL = 0.05

# Not a chat question: correct engines differ if two candidates are one step of bfloat16 apart.
QUESTION, ANSWER = "The capital of France is", " Paris"


class Cores(NamedTuple):
    """CPU seconds per second: of the server's processes, of this one, of all others, and stolen by the host."""

    server: float
    client: float
    others: float
    stolen: float


class Server:
    """A server, ready when the `with` block begins and gone when it ends; `{port}` in the command becomes its port.

    Raises:
        RuntimeError: it ended or hung before it was ready, or should know the capital of France and does not.
    """

    def __init__(
        self, command: tuple[str, ...], environment: Mapping[str, str], log: Path, knows_capitals: bool = True
    ) -> None:
        self._command = command
        self._environment = {**os.environ, **environment}
        self._log = log
        self._knows_capitals = knows_capitals

    def __enter__(self) -> "Server":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [part.replace("{port}", str(port)) for part in self._command]
        self.address = f"http://127.0.0.1:{port}"
        begin = time.perf_counter()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self._wait_until_ready(begin + READY_LIMIT)
            self.ready_seconds = round(time.perf_counter() - begin, 2)
            if self._knows_capitals:
                self._check_answer()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def memory(self) -> float:
        """Proportional set size of all its processes, in MB (10**6 bytes)."""
        return round(sum(process.memory_full_info().pss for process in self._tree()) / 1e6, 1)

    def clocks(self) -> tuple[float, Cores]:
        """The time, and the CPU seconds until now."""
        times = [process.cpu_times() for process in self._tree()]
        machine, own = psutil.cpu_times(), psutil.Process().cpu_times()
        server, client = sum(time.user + time.system for time in times), own.user + own.system
        busy = machine.user + machine.nice + machine.system + machine.irq + machine.softirq
        return time.perf_counter(), Cores(server, client, busy - server - client, machine.steal)

    def _tree(self) -> list[psutil.Process]:
        root = psutil.Process(self._process.pid)
        return [root, *root.children(recursive=True)]

    def _wait_until_ready(self, deadline: float) -> None:
        while True:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self._command[0]} ended with {self._process.returncode}: see {self._log}")
            if time.perf_counter() > deadline:
                raise RuntimeError(f"{self._command[0]} was not ready after {READY_LIMIT:g} s: see {self._log}")
            try:
                with urllib.request.urlopen(f"{self.address}/health", timeout=5):
                    return
            except OSError:
                time.sleep(POLL)

    def _check_answer(self) -> None:
        body = {"model": MODEL, "prompt": QUESTION, "temperature": 0, "max_tokens": 2}
        request = urllib.request.Request(
            f"{self.address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            text = json.load(response)["choices"][0]["text"]
        if not text.startswith(ANSWER):
            raise RuntimeError(f"{self._command[0]} goes on after {QUESTION!r} with {text!r}, not {ANSWER!r}")

    def _stop(self) -> None:
        if self._process.poll() is not None:
            return
        children = psutil.Process(self._process.pid).children(recursive=True)
        self._process.terminate()
        try:
            self._process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        left_behind = psutil.wait_procs(children, timeout=CHILDREN_LIMIT)[1]
        for child in left_behind:
            child.kill()
        psutil.wait_procs(left_behind)


def per_second(before: tuple[float, Cores], after: tuple[float, Cores]) -> Cores:
    """The cores used between two `clocks`."""
    seconds = after[0] - before[0]
    return Cores(*(round((late - early) / seconds, 2) for early, late in zip(before[1], after[1], strict=True)))
