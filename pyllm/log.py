"""Logging to stderr, the same in every process; the level is the environment variable PYLLM_LOG_LEVEL (INFO)."""

import logging
import os
import sys

from pyllm.errors import ConfigError
from pyllm.supervision import line_writer

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def configure(process: str, may_wait: bool = False) -> None:
    """Log with the time, the level and the process's name.

    Who reads too slowly is waited for only where that `may_wait`; else lines are written by a thread then.

    Raises:
        ConfigError: PYLLM_LOG_LEVEL is not a level.
    """
    level = os.environ.get("PYLLM_LOG_LEVEL", "INFO").upper()
    if level not in LEVELS:
        raise ConfigError(f"PYLLM_LOG_LEVEL must be one of {', '.join(LEVELS)}, got {level!r}")
    layout = f"%(asctime)s %(levelname)s {process} %(name)s: %(message)s"
    stream = sys.stderr if may_wait else line_writer.stderr()
    logging.basicConfig(level=level, format=layout, force=True, stream=stream)
