"""The log level of this process, which can change while it runs; parents tell their children.

Knows neither the environment nor handlers: `pyllm/log.py` sets these up.
"""

import logging

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

_changed = ""


def set_log_level(level: str) -> None:
    """Log at this level from now on, one of `LOG_LEVELS`, in this process and its children."""
    global _changed  # noqa: PLW0603 - a process has one log level
    _changed = level
    if logging.getLogger().level != logging.getLevelNamesMapping()[level]:  # Setting it clears a cache.
        logging.getLogger().setLevel(level)


def current_log_level() -> str:
    """The log level of this process."""
    return logging.getLevelName(logging.getLogger().level)


def changed_log_level() -> str:
    """The level that was set while this process ran; empty if none was."""
    return _changed
