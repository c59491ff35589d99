"""`pyllm replay`: repeats what `--scheduler-recording` or `placement_recording` wrote, and prints what it did."""

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    wrote = "what --scheduler-recording or EngineClient's placement_recording wrote"
    parser.add_argument("recording", type=Path, metavar="FILE", help=wrote)
    parser.epilog = "example:\n  pyllm serve --scheduler-recording calls && pyllm replay calls"


def run(options: argparse.Namespace) -> int:
    """Replay it; a call that decides something else is an error."""
    from pyllm.core.replay import replay_file

    print(json.dumps(replay_file(options.recording), indent=2))
    return 0
