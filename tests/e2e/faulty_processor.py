"""A logits processor that changes nothing, and ends its worker in the middle of a step when it is told to by a file."""

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]

NAME = "fault"


class Fault(BaseException):
    """No `Exception`, which would end its request alone."""


def install(folder: Path) -> dict[str, str]:
    """Write a package that offers the processor; gives the environment of a server that finds it."""
    information = folder / "faulty-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[pyllm.logits_processors]\n{NAME} = {__name__}:make_fault\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}


def make_fault(arguments: Mapping[str, str]) -> Callable[[Tokens, Tokens, Logits], Logits]:
    """When there is a file at the argument `flag`, a worker ends as it says, and the file is gone, but for "kill"."""
    flag = Path(arguments["flag"])

    def process(prompt: Tokens, output: Tokens, logits: Logits) -> Logits:
        del prompt, output
        if flag.exists():
            _end(flag)
        return logits

    return process


make_fault.takes = "numpy"  # type: ignore[attr-defined]  # as other packages do


def _end(flag: Path) -> NoReturn:
    kind = flag.read_text()
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    flag.unlink()
    if kind == "exit":
        os._exit(0)
    raise Fault(kind)
