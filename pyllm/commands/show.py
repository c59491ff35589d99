"""`pyllm show`: describes a model of this machine or of a server. Loads no weights, downloads nothing."""

import argparse
from typing import Any

import msgspec

from pyllm.commands.ps import add_server_arguments, ask_server

_PARTS = ("template", "parameters", "modelfile")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    text = "a model on this machine (default: the embedded one), or with --url one of that server"
    parser.add_argument("name", nargs="?", metavar="NAME", default="", help=text)
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    for part in _PARTS:
        parser.add_argument(f"--{part}", action="store_true", help=f"print the {part} alone")
    add_server_arguments(parser)
    parser.set_defaults(url=None)
    parser.epilog = "example:\n  pyllm show qwen3:4b"


def run(options: argparse.Namespace) -> int:
    """Print the description.

    Raises:
        ConfigError: the model is not on this machine.
        PyllmError: there is no server, or it does not have the model.
    """
    if options.url is None:
        from pyllm.frontend.ollama.model_files import show_files

        shown = msgspec.to_builtins(show_files(options.name))
    else:
        shown = ask_server(options, "POST", "/api/show", {"model": options.name})
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(shown)).decode())
        return 0
    parts = [shown[part].rstrip("\n") for part in _PARTS if getattr(options, part)]
    print("\n".join(parts) if parts else _text(shown))
    return 0


def _text(shown: dict[str, Any]) -> str:
    """The description for people to read."""
    details, info = shown["details"], shown["model_info"]
    family = details["family"]
    model = {
        "architecture": family,
        "parameters": details["parameter_size"],
        "context length": info[f"{family}.context_length"],
        "embedding length": info[f"{family}.embedding_length"],
        "quantization": details["quantization_level"],
    }
    rows = [f"  {name:<20} {value}" for name, value in model.items()]
    abilities = [f"  {name}" for name in shown["capabilities"]]
    lines = (line.split(maxsplit=1) for line in shown["parameters"].splitlines())
    parameters = [f"  {name:<20} {value}" for name, value in lines]
    return "\n".join(["Model", *rows, "", "Capabilities", *abilities, "", "Parameters", *parameters])
