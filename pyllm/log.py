"""Logging to stderr, the same in every process, as text or JSON; the level is PYLLM_LOG_LEVEL (default INFO).

No line contains a key. `--enable-log-requests` adds prompts, `--enable-log-outputs` outputs.
"""

import json
import logging
import os
import sys
from pathlib import Path

from pyllm.config.engine_settings import LogConfig
from pyllm.errors import ConfigError
from pyllm.supervision import line_writer
from pyllm.supervision.json_log import JsonFormatter
from pyllm.supervision.log_level import LOG_LEVELS, changed_log_level

DEFAULT = LogConfig()


def configure(process: str, config: LogConfig = DEFAULT, may_wait: bool = False) -> None:
    """Log with the time, the level and the process's name; then apply the file of `--log-config-file`.

    With `may_wait` a slow reader of stderr blocks the process; otherwise a thread then writes the lines.

    Raises:
        ConfigError: PYLLM_LOG_LEVEL is not a level, or the file cannot be used.
    """
    level = _level()
    handler = logging.StreamHandler(sys.stderr if may_wait else line_writer.stderr())
    layout = f"%(asctime)s %(levelname)s {process} %(name)s: %(message)s"
    handler.setFormatter(JsonFormatter(process) if config.log_format == "json" else logging.Formatter(layout))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    if config.log_config_file:
        _apply_file(Path(config.log_config_file))


def configure_child(process: str, config: LogConfig, may_wait: bool = False) -> None:
    """Configure a child process like `configure`; if the file fails, go on without it, as it worked in the parent."""
    try:
        configure(process, config, may_wait)
    except ConfigError as error:
        logging.getLogger(__name__).error("%s; this process goes on without it", error)


def check(config: LogConfig) -> None:
    """Raise the `ConfigError` of `configure`, if any; applies the file, and without one changes no handlers."""
    _level()
    if config.log_config_file:
        _apply_file(Path(config.log_config_file))


def _level() -> str:
    level = changed_log_level() or os.environ.get("PYLLM_LOG_LEVEL", "INFO").upper()
    if level not in LOG_LEVELS:
        raise ConfigError(f"PYLLM_LOG_LEVEL must be one of {', '.join(LOG_LEVELS)}, got {level!r}")
    return level


def _apply_file(path: Path) -> None:
    import logging.config

    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        logging.config.dictConfig({"disable_existing_loggers": False, **settings})
    except OSError as error:
        raise ConfigError(f"cannot read log_config_file {path}: {error.strerror}") from None
    except (ValueError, TypeError, AttributeError, ImportError) as error:
        reason = error.__cause__ or error
        raise ConfigError(f"log_config_file {path} is no configuration of Python's logging: {reason}") from None
