"""Reads the engine of a command line: the model, its settings, and vLLM's own settings."""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from pyllm import __version__
from pyllm.config.engine_settings import EngineConfig
from pyllm.config.option_reading import engine_config
from pyllm.errors import ConfigError
from pyllm.flags.settings_flags import given_settings
from pyllm.flags.vllm_settings import settle
from pyllm.supervision.json_log import is_json

MODEL_HELP = (
    "GGUF file, Hugging Face folder, or a model of the hub: owner/repo, owner/repo:Q4_K_M, owner/repo@revision or "
    "owner/repo/file.gguf"
)

logger = logging.getLogger(__name__)


def read_engine(options: argparse.Namespace) -> tuple[EngineConfig, list[str]]:
    """The engine's configuration, and notices of flags without effect.

    Raises:
        ConfigError: a value is wrong, or one of several names may be the model.
    """
    settings, notices = read_settings(options)
    return engine_config(settings), notices


def read_settings(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """The engine settings on the command line, and notices of flags without effect.

    Raises:
        ConfigError: one of vLLM's own settings is wrong, the model is named twice, or one of several names may be
            the model.
    """
    settle(options)
    given = given_settings(options)
    if options.model_argument is not None:
        if not options.model_argument:
            raise ConfigError("the MODEL is empty: name one, or leave it out for the embedded model")
        if given.get("model", options.model_argument) != options.model_argument:
            raise ConfigError(
                f"{options.model_argument} and --model {given['model']} both say which model: leave one out"
            )
        given["model"] = options.model_argument
    elif "model" not in given and _may_hold_model(names := given.get("served_model_name", ())):
        raise ConfigError(f"{names[-1]} was read as a name of --served-model-name; give the model first, or by --model")
    return given, list(getattr(options, "notices", ()))


def announce(notices: Sequence[str]) -> None:
    """Log each notice once."""
    for notice in dict.fromkeys(notices):
        logger.info("%s", notice)


def print_notices(notices: Sequence[str]) -> None:
    """Print each notice once, for commands that do not show the log."""
    for notice in dict.fromkeys(notices):
        print(f"note: {notice}", file=sys.stderr)


def say_start(engine: EngineConfig, stream: TextIO | None = None) -> None:
    """Print what starts before anything is loaded, which takes seconds. Only on a terminal, and not for a JSON log."""
    stream = stream or sys.stderr
    if stream.isatty() and not is_json():
        print(f"pyllm {__version__} starts {engine.model.model or 'the embedded model'} ...", file=stream, flush=True)


def _may_hold_model(names: Sequence[str]) -> bool:
    """Whether the last of several names may be the model, taken for a value of the flag before it."""
    return len(names) > 1 and ("/" in names[-1] or Path(names[-1]).exists())
