"""The flags of commands that talk to a server over TLS."""

import argparse

from pyllm.errors import ConfigError
from pyllm.wire.server_trust import ServerTrust


def add_trust_flags(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """Add `--cacert` and `--insecure`, with curl's meaning."""
    text = "CA certificates in PEM that its certificate must be signed with (default: SSL_CERT_FILE, else the system's)"
    parser.add_argument("--cacert", metavar="FILE", default="", help=text)
    parser.add_argument("--insecure", action="store_true", help="accept any TLS certificate of the server")


def trust_of(options: argparse.Namespace) -> ServerTrust:
    """The trust that the flags ask for.

    Raises:
        ConfigError: both are given, or the file cannot be used.
    """
    trust = ServerTrust(options.cacert, options.insecure)
    if trust.cacert and trust.is_insecure:
        raise ConfigError("--cacert says whose certificates to accept, and --insecure accepts any: leave one out")
    if trust.is_given:
        trust.context()  # Report an unusable file before anything else is done.
    return trust
