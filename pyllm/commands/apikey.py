"""`pyllm apikey`: makes an API key, which is shown once, and its entry for the file of `--api-key-file`."""

import argparse
from typing import get_args

from pyllm.config.api_keys import Role, new_key


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", metavar="NAME", help="whose key it is: the tenant of its requests")
    parser.add_argument(
        "--role", choices=get_args(Role), default="user", help="admin: may also use the routes below /admin"
    )
    parser.epilog = "example:\n  pyllm apikey team-a\n  pyllm apikey operator --role admin"


def run(options: argparse.Namespace) -> int:
    """Print the key and its entry."""
    key, entry = new_key(options.name, options.role)
    print(f"key, shown only now: {key}")
    print(f'entry for "keys" of the file that --api-key-file names: {entry}')
    return 0
