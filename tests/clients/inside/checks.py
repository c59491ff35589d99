"""What the programs' scripts share: it runs their checks and prints a line of JSON for each.

It runs inside a program's own environment, so that it uses the standard library alone.
"""

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEADLINE = 60.0  # seconds, for what must become true outside this process


@dataclass
class Servers:
    """Where the servers are, and the folder that checks may write to.

    `model` has the embedded model under the name `smol`, `scripted` answers by the program's script under the name
    `scripted`. Addresses have no `/v1`.
    """

    model: str
    scripted: str
    start_scripted: list[str]  # a command for one more scripted server, which prints its address
    start_model: list[str]  # one for one more server with the embedded model; it takes flags
    python_path: str  # of both commands
    folder: Path


class ScriptedServer:
    """One more scripted server, for a check that needs several or ends one."""

    def __init__(self, servers: Servers) -> None:
        environment = {**os.environ, "PYTHONPATH": servers.python_path}
        self.process = subprocess.Popen(servers.start_scripted, env=environment, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert self.address, "the scripted server has not started"

    def stop(self) -> None:
        """End it and wait; nothing if it has ended."""
        self.process.terminate()
        self.process.wait(DEADLINE)


class ModelServer:
    """One more server with the embedded model, on a free port unless the flags name one."""

    def __init__(self, servers: Servers, *flags: str) -> None:
        self.address = ""
        environment = {**os.environ, "PYTHONPATH": servers.python_path}
        command = [*servers.start_model, "--kv-cache-memory-bytes", "64MiB", "--port", "0", *flags]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def wait(self) -> None:
        """Wait until it is ready; only then it has an address."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("pyllm is ready on http://"), line
        self.address = line.split()[4]

    def kill(self) -> None:
        """End all its processes at once, its supervisor first, as the loss of its machine would."""
        for number in _descendants(self.process.pid):
            os.kill(number, signal.SIGKILL)
        self.process.wait(DEADLINE)

    def stop(self) -> None:
        """Tell it to finish what it has, and wait; nothing if it has ended."""
        self.process.terminate()
        self.process.wait(DEADLINE)


def _descendants(number: int) -> list[int]:
    """A process and those that it and they have started, in this order."""
    numbers = [number]
    for parent in numbers:
        for tasks in Path(f"/proc/{parent}/task").glob("*/children"):
            numbers += map(int, tasks.read_text().split())
    return numbers


_checks: list[Callable[[Servers], Any]] = []


def check(function: Callable[[Servers], Any]) -> Callable[[Servers], Any]:
    """Mark a function, plain or async, as a check: it fails by raising."""
    _checks.append(function)
    return function


def main() -> None:
    """Run all checks in their order; one that fails does not keep the others from running."""
    given = json.loads(sys.argv[1])
    servers = Servers(**{**given, "folder": Path(given["folder"])})
    for function in _checks:
        begun = time.monotonic()
        line: dict[str, Any] = {"check": function.__name__, "ok": True}
        try:
            result = function(servers)
            if inspect.isawaitable(result):
                asyncio.run(_awaited(result))
        except Exception as error:  # noqa: BLE001 - whatever fails is the check's result
            traceback.print_exc()
            line |= {"ok": False, "error": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps(line | {"seconds": round(time.monotonic() - begun, 2)}), flush=True)


async def _awaited(result: Any) -> Any:
    return await result


def metric(address: str, name: str) -> float:
    """The sum of one metric of a server over its labels."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=DEADLINE) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def wait_until(holds: Callable[[], bool], what: str, seconds: float = DEADLINE) -> None:
    """Look again until something holds; fails after so many seconds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)


def is_idle(address: str) -> bool:
    """Whether a server has no request left."""
    return metric(address, "vllm:num_requests_running") == 0


def run(command: list[str], environment: dict[str, str], folder: Path, limit: float = 120.0) -> tuple[int, str]:
    """Run a program with nothing on its standard input; gives its exit code and what it wrote."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit,
        check=False,
    )
    return done.returncode, done.stdout
