"""`pyllm show`: describes a model of this machine or of a server. Loads no weights, downloads nothing."""

import argparse
from typing import Any

import msgspec

from pyllm.checkpoint.hub import Hub, find_model
from pyllm.checkpoint.model_name import HubName, parse_model
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.commands.ps import add_server_arguments, ask_server
from pyllm.errors import ConfigError

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
        shown = _local(options.name)
    else:
        shown = ask_server(options, "POST", "/api/show", {"model": options.name})
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(shown)).decode())
        return 0
    parts = [shown[part].rstrip("\n") for part in _PARTS if getattr(options, part)]
    print("\n".join(parts) if parts else _text(shown))
    return 0


def _local(name: str) -> dict[str, Any]:
    """The description of a model on this machine, with the parsers that a server chooses by itself."""
    from pyllm.frontend.chat.parsers.parser_selection import parsers_of
    from pyllm.frontend.chat.template_traits import template_traits
    from pyllm.frontend.ollama.model_details import Abilities, shown_model
    from pyllm.frontend.text.fill_in_the_middle import can_fill_middle
    from pyllm.frontend.text.templates import ChatTemplate
    from pyllm.frontend.text.tokenizer import Tokenizer

    if isinstance(place := parse_model(name) if name else None, HubName):
        try:
            find_model(place, Hub(offline=True))
        except ConfigError:
            raise ConfigError(f"{name} is not on this machine: `pyllm pull {name}` downloads it") from None
    checkpoint = read_checkpoint(name, Hub(offline=True))
    template = ChatTemplate.of(checkpoint.tokenizer)
    can_generate = not checkpoint.embedding.is_only_use
    tools = thinking = False
    if can_generate and template is not None:
        with_tools = template.for_tools(True)
        parsers = parsers_of(with_tools.source, template_traits(with_tools, True).tools, "auto", "auto")
        tools, thinking = parsers.tool_call != "none", parsers.reasoning != "none"
    abilities = Abilities(
        completion=can_generate,
        tools=tools,
        thinking=thinking,
        insert=can_generate and can_fill_middle(Tokenizer(checkpoint.tokenizer)),
    )
    source = "" if template is None else template.source
    length = checkpoint.spec.max_position_embeddings
    return _as_dict(shown_model(checkpoint, length, checkpoint.sampling, source, abilities))


def _as_dict(shown: msgspec.Struct) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(shown)
    return fields


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
