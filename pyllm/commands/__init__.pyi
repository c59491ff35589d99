from .command_line import expand, split_config
from .command_parser import PATHS, CommandParser, nearest

__all__ = [
    "PATHS",
    "CommandParser",
    "expand",
    "nearest",
    "split_config",
]
