"""The engine's flags for a program of one's own, in vLLM's way: `LLM(**vars(parser.parse_args()))`."""

import argparse
import sys
from collections.abc import Sequence
from os import PathLike
from typing import Any

from pyllm.flags.command_line import expand
from pyllm.flags.settings_flags import add_engine_settings, add_vllm_flags


class EngineArgs:
    """The engine's settings as flags, and vLLM's; one that is not given is None, which `LLM` takes for the default.

    As in vLLM, one made of keywords is what `AsyncEngine.from_engine_args` and `LLMEngine.from_engine_args` take.
    """

    def __init__(self, model: str | PathLike[str] | None = None, **options: Any) -> None:
        self.options = options if model is None else {"model": model, **options}

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> "EngineArgs":
        """The settings that a program was given by the flags of `add_cli_args`."""
        return cls(**vars(args))

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add one flag for each setting, `--model` included; gives the parser."""
        add_engine_settings(parser)
        add_vllm_flags(parser)
        return parser


AsyncEngineArgs = EngineArgs  # vLLM's name of those of `AsyncLLMEngine`


class FlexibleArgumentParser(argparse.ArgumentParser):
    """A parser that takes underscores in flags, and settings by their path (`--hf-overrides.max_window_layers 4`)."""

    def parse_args(  # type: ignore[override]  # argparse's has overloads for the namespace's class
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """The arguments of the program, or those given; exits with 2 where they are wrong."""
        return super().parse_args(expand(sys.argv[1:] if args is None else args), namespace)
