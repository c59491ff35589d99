from .command_line import expand, split_config
from .command_parser import PATHS, CommandParser, nearest
from .settings_flags import add_engine_settings

__all__ = [
    "PATHS",
    "CommandParser",
    "add_engine_settings",
    "expand",
    "nearest",
    "split_config",
]
