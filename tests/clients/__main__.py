"""`python -m tests.clients [NAME...]`: real programs, unchanged, against this server. Prints a table at the end.

`--upgrade` takes the programs' newest versions. Fails if a check did.
"""

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.clients.environment import PROGRAMS
from tests.clients.program import MODEL_FLAGS, Outcome, Program
from tests.e2e.server import Server

ROOT = Path(".clients")


def main() -> None:
    """Read the command line, run the programs one after another."""
    known = sorted(path.stem for path in PROGRAMS.glob("*.txt"))
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; all without a name")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions, not the pinned ones")
    parser.add_argument("--template", type=Path, help="the scripted model has the chat template in this file")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # So that the servers end, too.
    outcomes = []
    with tempfile.TemporaryFile("w") as log, Server(*MODEL_FLAGS, log_file=log) as server:
        for name in arguments.names or known:
            outcome = Program(name, ROOT.absolute(), arguments.template).run(server.address, arguments.upgrade)
            outcomes.append(outcome)
            _show(outcome)
    _show_table(outcomes)
    sys.exit(0 if all(outcome.is_good for outcome in outcomes) else 1)


def _show(outcome: Outcome) -> None:
    print(f"\n{outcome.name} {outcome.version}")
    if not outcome.is_good:
        print(outcome.log)
    for check in outcome.checks:
        print(f"  {'ok' if check['ok'] else 'FAILED'} {check['check']} {check['seconds']} s {check.get('error', '')}")
    if outcome.trouble:
        print(f"  FAILED: {outcome.trouble}")
    sys.stdout.flush()


def _show_table(outcomes: list[Outcome]) -> None:
    print(f"\n{'program':<18}{'version':<12}{'passed':>8}{'failed':>8}")
    for outcome in outcomes:
        failed = len(outcome.failed)
        line = f"{outcome.name:<18}{outcome.version:<12}{len(outcome.checks) - failed:>8}{failed:>8}"
        print(f"{line}  {outcome.trouble}".rstrip())


if __name__ == "__main__":
    main()
