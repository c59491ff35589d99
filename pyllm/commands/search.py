"""`pyllm search`: asks the Hugging Face hub for models by words. Downloads nothing."""

import argparse

import msgspec

from pyllm.checkpoint.hub import Hub, search_models
from pyllm.commands.bench_flags import positive_int
from pyllm.commands.models import print_table

_FORMATS = ("gguf", "safetensors")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("words", nargs="+", metavar="WORD", help="a part of the names that are looked for")
    parser.add_argument("--limit", type=positive_int, default=20, metavar="N", help="most models to list (default: 20)")
    parser.add_argument("--format", choices=_FORMATS, help="only models that have files of this format")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.epilog = "example:\n  pyllm search qwen3 4b --format gguf"


def run(options: argparse.Namespace) -> int:
    """Print the models, those that are downloaded most first.

    Raises:
        ConfigError: the hub cannot be asked.
    """
    found = search_models(" ".join(options.words), Hub(), options.limit, options.format or "")
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
        return 0
    rows = [
        (model.id, ", ".join(name for name in _FORMATS if name in model.tags), str(model.downloads), str(model.likes))
        for model in found
    ]
    print_table([("NAME", "FORMATS", "DOWNLOADS", "LIKES"), *rows])
    return 0
