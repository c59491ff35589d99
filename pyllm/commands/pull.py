"""`pyllm pull`: downloads a model from the Hugging Face hub. Reads no model."""

import argparse

from pyllm import log
from pyllm.checkpoint.hub import Hub, find_model
from pyllm.checkpoint.model_name import FORMS, HubName, parse_model
from pyllm.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", metavar="NAME", help=FORMS)
    parser.epilog = "example:\n  pyllm pull Qwen/Qwen3-0.6B"


def run(options: argparse.Namespace) -> int:
    """Download the model and print where it is."""
    log.configure("pyllm::pull")
    name = parse_model(options.name)
    if not isinstance(name, HubName):
        raise ConfigError(f"{name} is a path on this machine: there is nothing to download")
    print(find_model(name, Hub()))
    return 0
