"""Recordings read back: every call is made again on a new scheduler, which must decide the same."""

from pathlib import Path
from typing import Any

from pyllm._rust import SchedulerError, replay
from pyllm.errors import ConfigError, PyllmError

# Of every version; `recorder.rs` writes it.
BEGINNING = b"pyllm scheduler recording "


def replay_file(path: Path) -> dict[str, Any]:
    """Replay what `--scheduler-recording` wrote: num_entries, num_steps, hash, is_truncated, stats.

    Raises:
        ConfigError: the file cannot be read, or is no recording.
        PyllmError: an entry of it does not decode, is refused or decides something else.
    """
    try:
        recording = path.read_bytes()
        if not recording.startswith(BEGINNING):
            raise ConfigError(f"{path} is no recording: give a file that --scheduler-recording wrote")
        return replay(recording)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except SchedulerError as error:
        raise PyllmError(f"{path}: {error}") from error
