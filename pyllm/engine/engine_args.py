"""The engine's flags for other programs, as in vLLM: `LLM(**vars(parser.parse_args()))`."""

import argparse
import sys
from collections.abc import Sequence
from os import PathLike
from typing import Any

from pyllm.flags.command_line import expand
from pyllm.flags.settings_flags import add_engine_settings, add_vllm_flags


class EngineArgs:
    """The engine's settings as flags, and vLLM's; a flag that is not given is None, which means the default.

    As in vLLM, you can make one of keywords for `AsyncEngine.from_engine_args` and `LLMEngine.from_engine_args`.
    """

    def __init__(self, model: str | PathLike[str] | None = None, **options: Any) -> None:
        self.options = options if model is None else {"model": model, **options}

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> "EngineArgs":
        """The settings from the parsed flags of `add_cli_args`."""
        return cls(**vars(args))

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add one flag for each setting, including `--model`; return the parser."""
        add_engine_settings(parser)
        add_vllm_flags(parser)
        return parser


AsyncEngineArgs = EngineArgs  # vLLM's name for those of `AsyncLLMEngine`


class FlexibleArgumentParser(argparse.ArgumentParser):
    """A parser that accepts underscores in flags, and nested settings (`--hf-overrides.max_window_layers 4`)."""

    def parse_args(  # type: ignore[override]  # argparse's has overloads for the namespace's class
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """Parse the arguments of the program, or the given ones; exit with 2 if they are wrong."""
        return super().parse_args(expand(sys.argv[1:] if args is None else args), namespace)
