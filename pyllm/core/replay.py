"""Recordings read back: every call is made again on a new scheduler or placement, which must decide the same."""

from pathlib import Path
from typing import Any

from pyllm._rust import Placement, replay
from pyllm.errors import ConfigError, PyllmError

# The replay function of each kind of recording, by its first bytes in all versions; `recorder.rs` writes them.
READERS = {b"pyllm scheduler recording ": replay, b"pyllm placement recording ": Placement.replay}


def replay_file(path: Path) -> dict[str, Any]:
    """Replay a file of `--scheduler-recording` or of `EngineClient`'s `placement_recording`.

    Returns num_entries, num_steps, hash, is_truncated and stats for a scheduler, and num_entries, num_choices, hash and
    is_truncated for a placement.

    Raises:
        ConfigError: the file cannot be read, or is not a recording.
        PyllmError: an entry does not decode, is refused, or leads to another decision.
    """
    try:
        recording = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    for beginning, read in READERS.items():
        if recording.startswith(beginning):
            try:
                return read(recording)
            except ValueError as error:
                raise PyllmError(f"{path}: {error}") from error
    raise ConfigError(
        f"{path} is no recording: give a file that --scheduler-recording or EngineClient's placement_recording wrote"
    )
