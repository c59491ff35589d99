"""`pyllm rm`: deletes a model from the cache of the Hugging Face hub. Touches no other file."""

import argparse

from pyllm.checkpoint.hub import size_text
from pyllm.checkpoint.hub_cache import remove
from pyllm.checkpoint.model_name import FORMS, parse_hub_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", metavar="NAME", help=FORMS)
    parser.epilog = "example:\n  pyllm rm Qwen/Qwen3-0.6B"


def run(options: argparse.Namespace) -> int:
    """Delete the model and print how much space that freed."""
    freed = remove(parse_hub_name(options.name))
    print(f"deleted {options.name}: {size_text(freed)} freed")
    return 0
