"""A real `pyllm serve` for tests: started on a free port, looked at from outside, ended without a trace."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

import httpx
import psutil

from tests.e2e.titles import find
from tests.in_process import KV_CACHE

READY = re.compile(r"pyllm is ready on (https?://\S+|unix:\S+)")
# Bounds a broken server; a good one takes a fraction of it.
DEADLINE = 90.0
# Seconds between two looks at processes, which take the processor that the server is to have.
PAUSE = 0.01


class Server:
    """The process, its address once it is ready, and its process tree by title.

    With `log_file` what it logs goes there, and not to `log`: a pipe that nobody reads holds up whoever fills it. There
    is no spare unless `warm_spares` are what is tested: it takes processor time that the test wants. `command` and
    `inherited` are another installation's and its variables.
    """

    def __init__(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        log_file: IO[str] | None = None,
        warm_spares: bool = False,
        command: Sequence[str] = (sys.executable, "-m", "pyllm", "serve"),
        inherited: Mapping[str, str] = os.environ,
        logs_json: bool = False,
    ) -> None:
        spares = "--warm-spares" if warm_spares else "--no-warm-spares"
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--kv-cache-memory-bytes", KV_CACHE, spares, *arguments],
            stdout=subprocess.PIPE,
            stderr=log_file or subprocess.PIPE,
            text=True,
            env={**inherited, **(environment or {})},
        )
        self._logs_json = logs_json
        self.address = ""
        self.log = ""
        self.tree: list[psutil.Process] = []

    def __enter__(self) -> "Server":
        assert self.process.stdout is not None
        line = self._ready_record() if self._logs_json else self.process.stdout.readline()
        match = READY.match(line)
        if match is None:
            self.stop()
        assert match is not None, f"not ready: {line!r}\n{self.log}"
        self.address = match.group(1)
        self.tree = self.processes()
        return self

    def _ready_record(self) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line
            if '"event": "ready"' in line:
                return str(json.loads(line)["message"])
        return ""

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal the supervisor and wait for its end; gives the exit code. Everything it logged is in `log` then."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait until the supervisor has ended; gives the exit code."""
        try:
            self.log += self.process.communicate(timeout=DEADLINE)[1] or ""
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.log += self.process.communicate()[1] or ""
            raise
        return self.process.returncode

    def processes(self) -> list[psutil.Process]:
        """The supervisor and all its descendants."""
        supervisor = psutil.Process(self.process.pid)
        return [supervisor, *supervisor.children(recursive=True)]

    def titled(self, title: str) -> psutil.Process:
        """The process that carries this title."""
        (found,) = find(self.process.pid, title)
        return found

    def orphans(self) -> list[psutil.Process]:
        """Processes of the tree that are still there, after giving the kernel time to end them."""
        _, alive = psutil.wait_procs(self.tree, timeout=10.0)
        return alive

    def http(self) -> httpx.Client:
        """A client that waits as long as a test may."""
        return httpx.Client(base_url=self.address, timeout=DEADLINE)

    def complete(self, prompt: str | Sequence[int], **fields: object) -> httpx.Response:
        """One completion; greedy unless told otherwise."""
        body = {"model": self.model(), "prompt": prompt, "temperature": 0, **fields}
        with self.http() as http:
            return http.post("/v1/completions", json=body)

    def model(self) -> str:
        """The name that the server gives its model."""
        with self.http() as http:
            return str(http.get("/v1/models").json()["data"][0]["id"])

    def metric(self, name: str) -> float:
        """The sum of one metric over its labels."""
        with self.http() as http:
            lines = http.get("/metrics").text.splitlines()
        values = [float(line.rsplit(" ", 1)[1]) for line in lines if re.match(re.escape(name) + r"[ {]", line)]
        assert values, f"there is no metric {name}"
        return sum(values)


def until(holds: Callable[[], bool], what: str) -> None:
    """Ask a server again until something holds; fails after the deadline, with what was waited for."""
    end = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < end, f"waited {DEADLINE:g} s for {what}"
        time.sleep(PAUSE)
