from .command_line import expand, split_config
from .command_parser import CommandParser, nearest

__all__ = [
    "CommandParser",
    "expand",
    "nearest",
    "split_config",
]
