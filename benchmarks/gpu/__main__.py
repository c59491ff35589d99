"""`python -m benchmarks.gpu [PART ...]`: is this card served rightly, and how fast? One JSON object a line.

Each part runs in a process of its own; the last line names those that failed or were not reached within `--seconds`.
Exits with 0 where all parts passed, with 1 where one did not, and with 2 where there is no CUDA card.
"""

import argparse
import shlex
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.gpu.part_processes import run_parts
from benchmarks.gpu.parts import PARTS, Line, Setting, check, emit, own_command
from pyllm.supervision.line_writer import end_process

SLICE_SECONDS = 540.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all of them by default")
    parser.add_argument("--seconds", type=float, default=SLICE_SECONDS, help="for all parts (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where traces and the random model go (default: a temporary one)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help=argparse.SUPPRESS)  # for tests
    parser.add_argument("--checks", action="store_true", help=argparse.SUPPRESS)  # PARTs are checks of `kernels`
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)  # a part's own process
    options = parser.parse_args(arguments)
    if not options.checks and (unknown := [part for part in options.parts if part not in PARTS]):
        parser.error(f"no part {unknown[0]!r}: choose of {', '.join(PARTS)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "no CUDA card is visible to torch here, so nothing was checked or measured; "
            "run this where nvidia-smi lists one and torch is a CUDA build",
            file=sys.stderr,
        )
        return 2
    if options.inside:
        setting = Setting(options.device, options.folder, small=options.device == "cpu")
        if options.checks:
            end_process(check(setting, options.parts))
        said = [_emit_line(line) for part in options.parts for line in PARTS[part](setting)]
        end_process(0 if all(said) else 1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        outcome = run_parts(
            options.parts or list(PARTS),
            lambda part: [*own_command(options.device, folder), part],
            seconds=options.seconds,
            clock=time.monotonic,
            emit=emit,
        )
    summary: Line = {"name": "gpu.summary", "ok": not any(outcome), **outcome._asdict()}
    if outcome.not_reached:
        where = ["--folder", str(options.folder)] if options.folder else []
        summary["next"] = shlex.join(["python", "-m", "benchmarks.gpu", *where, *outcome.not_reached])
    emit(summary)
    return 1 if any(outcome) else 0


def _emit_line(line: Line) -> bool:
    """Print it; whether it says nothing of a failure."""
    emit(line)
    return bool(line.get("ok", True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
