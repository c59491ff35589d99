from .command_line import expand, split_config
from .command_parser import PATHS, CommandParser, nearest
from .engine_arguments import MODEL_HELP, announce, print_notices, read_engine, read_settings, say_start
from .keyword_settings import engine_keywords, server_settings
from .settings_flags import SettingsParser, add_engine_settings, add_settings, add_vllm_flags, given_settings
from .trust_flags import add_trust_flags, trust_of

__all__ = [
    "MODEL_HELP",
    "PATHS",
    "CommandParser",
    "SettingsParser",
    "add_engine_settings",
    "add_settings",
    "add_trust_flags",
    "add_vllm_flags",
    "announce",
    "engine_keywords",
    "expand",
    "given_settings",
    "nearest",
    "print_notices",
    "read_engine",
    "read_settings",
    "say_start",
    "server_settings",
    "split_config",
    "trust_of",
]
