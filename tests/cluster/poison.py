"""A logits processor that ends the worker or the core that computes its request, every time, and says so in a file.

It runs in the worker. A worker ends by its own fault (SIGSEGV), a core by a SIGKILL from beside it.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import psutil

from tests.e2e.titles import CORE, find

Tokens = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]
Victim = Literal["worker", "core"]

NAME = "poison"


class Death(NamedTuple):
    """A process that a poisoned request has ended, and the supervisor of its machine; the time is monotonic."""

    request: str
    victim: Victim
    pid: int
    supervisor: int
    time: float


def install(folder: Path) -> dict[str, str]:
    """Write a package that offers the processor; gives the environment of a core that finds it."""
    information = folder / "poison-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: poison\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[pyllm.logits_processors]\n{NAME} = {__name__}:make_poison\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}


def arguments(request: str, victim: Victim, after: int, record: Path) -> dict[str, dict[str, Any]]:
    """The `extra_args` of a request that ends its `victim` as soon as it has `after` tokens; deaths go to `record`."""
    return {NAME: {"request": request, "victim": victim, "after": after, "record": str(record)}}


def deaths(record: Path) -> list[Death]:
    """All that is on record so far."""
    lines = record.read_text().splitlines() if record.exists() else []
    return [Death(*json.loads(line)) for line in lines]


def make_poison(arguments: Mapping[str, Any]) -> Callable[[Tokens, Tokens, Logits], Logits]:
    """The processor of one request, see `arguments`."""

    def process(prompt: Tokens, output: Tokens, logits: Logits) -> Logits:
        del prompt
        if len(output) >= arguments["after"]:
            _end(arguments["request"], arguments["victim"], Path(arguments["record"]))
        return logits

    return process


make_poison.takes = "numpy"  # type: ignore[attr-defined]  # as other packages do


def _end(request: str, victim: Victim, record: Path) -> None:
    worker = psutil.Process()
    supervisor = worker.parents()[1]  # Beyond the fork server.
    for process in find(supervisor.pid, CORE) if victim == "core" else [worker]:
        with record.open("a") as file:
            file.write(json.dumps(Death(request, victim, process.pid, supervisor.pid, time.monotonic())) + "\n")
        process.send_signal(signal.SIGKILL if victim == "core" else signal.SIGSEGV)
    signal.pause()  # Nothing of this step is to get out.
