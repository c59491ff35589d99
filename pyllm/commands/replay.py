"""`pyllm replay`: replays a recording of `--scheduler-recording` or `placement_recording`, and prints a summary."""

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    wrote = "what --scheduler-recording or EngineClient's placement_recording wrote"
    parser.add_argument("recording", type=Path, metavar="FILE", help=wrote)
    parser.epilog = "example:\n  pyllm serve --scheduler-recording calls && pyllm replay calls"


def run(options: argparse.Namespace) -> int:
    """Replay the recording; a call with another result than the recorded one is an error."""
    from pyllm.core.replay import replay_file

    print(json.dumps(replay_file(options.recording), indent=2))
    return 0
