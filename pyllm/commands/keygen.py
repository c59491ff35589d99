"""`pyllm keygen`: makes CURVE keys for `tcp://`."""

import argparse
from pathlib import Path

from pyllm.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", type=_folder, metavar="FOLDER", help="new folder for the keys of server and client")
    parser.epilog = "example:\n  pyllm keygen keys && pyllm core --bind tcp://0.0.0.0:5555 --curve-keys keys"


def run(options: argparse.Namespace) -> int:
    """Write the keys, and say which keys server and clients get."""
    from pyllm.wire import curve

    try:
        curve.generate(options.folder)
    except OSError as error:
        raise ConfigError(f"cannot write keys to {options.folder}: {error.strerror}") from None
    print(f"{options.folder}: keep server.key_secret with the core; give clients server.key and client.key_secret")
    return 0


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("needs a folder, as in `pyllm keygen keys`")
    return Path(text)
