"""`pyllm stop`: has a server unload a model."""

import argparse
import sys

from pyllm.commands.ps import add_server_arguments, ask_server

_STAYS = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", metavar="NAME", help="a model's name, as `pyllm ps` lists it")
    add_server_arguments(parser)
    parser.epilog = "example:\n  pyllm stop qwen3:4b"


def run(options: argparse.Namespace) -> int:
    """Unload the model; return 1 where the server keeps it.

    Raises:
        PyllmError: there is no server, or it does not have the model.
    """
    body = {"model": options.name, "keep_alive": 0, "stream": False}
    name = ask_server(options, "POST", "/api/generate", body)["model"]
    loaded = {model["name"].removesuffix(":latest") for model in ask_server(options, "GET", "/api/ps")["models"]}
    if name.removesuffix(":latest") not in loaded:
        print(f"unloaded {name}")
        return 0
    text = f"the server keeps {name}: a server of one model ends by Ctrl-C in its terminal, or by SIGTERM"
    print(f"pyllm: {text}", file=sys.stderr)
    return _STAYS
