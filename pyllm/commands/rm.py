"""`pyllm rm`: deletes a model from the cache of the Hugging Face hub. Touches no other file."""

import argparse

from pyllm.checkpoint.hub import size_text
from pyllm.checkpoint.hub_cache import remove
from pyllm.checkpoint.model_name import FORMS, parse_hub_name
from pyllm.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", metavar="NAME", help=f"{FORMS}; `pyllm models` lists the names")
    parser.epilog = "example:\n  pyllm rm Qwen/Qwen3-0.6B"


def run(options: argparse.Namespace) -> int:
    """Delete the model and print how much space that freed.

    Raises:
        ConfigError: the cache has no model of this name.
    """
    try:
        name = parse_hub_name(options.name)
    except ConfigError:
        text = f"{options.name!r} is no name of a downloaded model ({FORMS}): `pyllm models` lists them"
        raise ConfigError(text) from None
    freed = remove(name)
    print(f"deleted {options.name}: {size_text(freed)} freed")
    return 0
