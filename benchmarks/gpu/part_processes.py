"""Parts of a run, each in its own process, so that a failure, even of a CUDA context, does not affect the next part.

Knows no part by name.
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

LEAST_SECONDS = 20.0
"""With less left, no part begins."""
RAISED = 3
"""The exit code of a process whose last check raised: its CUDA context may be broken."""
_LAST_CHARACTERS = 400
_CHECK = "gpu.check."


class Outcome(NamedTuple):
    """The parts that did not end with 0 in time, and those without time left."""

    failed: list[str]
    not_reached: list[str]


def run_parts(
    parts: Sequence[str],
    command: Callable[[str], Sequence[str]],
    *,
    seconds: float,
    clock: Callable[[], float],
    emit: Callable[[dict[str, Any]], None],
    least_seconds: float = LEAST_SECONDS,
) -> Outcome:
    """Run each part's command, which prints its own lines, within `seconds` for all.

    Emits a line with the result of each part, also of those that were not reached.
    """
    end = clock() + seconds
    failed, not_reached = [], []
    for part in parts:
        started = clock()
        if (left := end - started) < least_seconds:
            error = f"not reached: {max(left, 0):.0f} of {seconds:.0f} s were left; run it in a call of its own"
            not_reached.append(part)
        elif error := _run(command(part), left):
            failed.append(part)
        line: dict[str, Any] = {"name": "gpu.part", "part": part, "ok": not error}
        emit(line | {"seconds": round(clock() - started, 1)} | ({"error": error} if error else {}))
    return Outcome(failed, not_reached)


def _run(command: Sequence[str], seconds: float) -> str:
    """Run a command; return the failure, or an empty text."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stderr=log, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            error = f"ended after {seconds:.0f} s"
        else:
            error = "" if code == 0 else f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        finally:
            _end_group(process)
        log.seek(0)
        written = log.read().decode(errors="replace").strip()
    return f"{error}: {written[-_LAST_CHARACTERS:]}" if error and written else error


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """End the process group of a part, with all processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_checks(names: Sequence[str], command: Callable[[Sequence[str]], Sequence[str]]) -> Iterator[dict[str, Any]]:
    """The line of each check, in order, with other output of a process between them as text.

    A process runs the checks in order until one raises or ends it; a new process continues after that.
    """
    left = list(names)
    while left:
        is_done = False  # whether this process has finished a check
        with subprocess.Popen(command(left), stdout=subprocess.PIPE, text=True, errors="replace") as process:
            assert process.stdout is not None
            for text in process.stdout:
                if (line := _line_of_check(text)) is None:
                    yield {"name": "gpu.text", "text": text.rstrip()[:_LAST_CHARACTERS]}
                elif left:
                    is_done = True
                    del left[0]
                    yield line
        code = process.returncode
        if left and not (code == RAISED and is_done):
            yield {"name": f"{_CHECK}{left.pop(0)}", "ok": False, "error": f"its process ended with {code}"}


def _line_of_check(text: str) -> dict[str, Any] | None:
    """The line of a check; None for output of a library or a driver."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and str(line.get("name", "")).startswith(_CHECK) else None
