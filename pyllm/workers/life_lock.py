"""A lock that a process holds for life: its successor waits for its end.

The kernel frees the memory of a process before it unlocks its files.
"""

import fcntl
import logging
import os
import time

MAX_PATIENCE = 10.0  # seconds that a process waits for its predecessor, which the kernel may fail to end
_PAUSE = 0.01

logger = logging.getLogger(__name__)


def hold(path: str, patience: float = MAX_PATIENCE) -> bool:
    """Lock the file `path` for the life of this process; False if its holder does not end within `patience` seconds."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                logger.warning("the process before this one still holds %s after %g s", path, patience)
                return False
        else:
            return True
        time.sleep(_PAUSE)
