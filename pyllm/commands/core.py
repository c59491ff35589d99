"""`pyllm core`: a headless core for `EngineClient`."""

import argparse

from pyllm import log
from pyllm.config.engine_settings import LogConfig
from pyllm.config.option_reading import config_part
from pyllm.config.server_settings import HeadlessConfig
from pyllm.flags.engine_arguments import MODEL_HELP, announce, read_engine, say_start
from pyllm.flags.settings_flags import (
    SettingsParser,
    add_engine_settings,
    add_settings,
    add_vllm_flags,
    given_settings,
)

PARSER = SettingsParser
USAGE = "pyllm core [MODEL] --bind ADDRESS [--FLAG VALUE ...]"
COMMON = ("bind", "curve-keys", "max-model-len", "kv-cache-memory-bytes", "max-num-seqs", "tensor-parallel-size")


def add_arguments(parser: SettingsParser) -> None:
    """Declare the command's arguments."""
    parser.usage = USAGE
    parser.shorten_help(COMMON)
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help=MODEL_HELP)
    add_settings(parser, HeadlessConfig)
    add_engine_settings(parser)
    add_vllm_flags(parser)
    parser.epilog = "example:\n  pyllm core model.gguf --bind ipc:///tmp/core"


def run(options: argparse.Namespace) -> int:
    """Serve until a signal; return the exit code."""
    # First, so that errors in the settings are records in a JSON log, too.
    log.configure("pyllm::serve", config_part(LogConfig, given_settings(options, LogConfig)))
    engine, notices = read_engine(options)
    headless = config_part(HeadlessConfig, given_settings(options, HeadlessConfig))
    say_start(engine)
    announce(notices)

    from pyllm.launch import serve as launcher  # Slow to import.

    return launcher.serve_core(engine, headless)
