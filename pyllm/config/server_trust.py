"""The client's side of TLS: whose certificates a command believes, of the server that it talks to."""

import argparse
import os
import ssl
from pathlib import Path

import msgspec

from pyllm.errors import ConfigError


class ServerTrust(msgspec.Struct, frozen=True):
    """The CA certificates in the file `cacert`, or any certificate if `is_insecure`.

    Without either those of SSL_CERT_FILE and SSL_CERT_DIR, as in OpenSSL, or else the usual ones.
    """

    cacert: str = ""
    is_insecure: bool = False

    @property
    def is_given(self) -> bool:
        """Whether a flag says something."""
        return self != ServerTrust()

    def verify(self) -> ssl.SSLContext | bool:
        """The same for `httpx2`, which has usual ones of its own: a machine may have none."""
        is_said = self.is_given or "SSL_CERT_FILE" in os.environ or "SSL_CERT_DIR" in os.environ
        return self.context() if is_said else True

    def context(self) -> ssl.SSLContext:
        """What connections check certificates with.

        Raises:
            ConfigError: the file cannot be used.
        """
        file = self.cacert or os.environ.get("SSL_CERT_FILE", "")
        try:
            if file and not Path(file).read_bytes():
                raise OSError("it is empty")
            context = ssl.create_default_context(cafile=file or None, capath=_folder(file))
        except OSError as error:
            name = "--cacert" if self.cacert else "SSL_CERT_FILE"
            raise ConfigError(f"cannot use the CA certificates {file} of {name}: {error.strerror or error}") from None
        if self.is_insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


DEFAULT_TRUST = ServerTrust()


def add_trust_flags(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """`--cacert` and `--insecure`, as curl has them."""
    text = "CA certificates in PEM that its certificate must be signed with (default: SSL_CERT_FILE, else the system's)"
    parser.add_argument("--cacert", metavar="FILE", default="", help=text)
    parser.add_argument("--insecure", action="store_true", help="accept any TLS certificate of the server")


def trust_of(options: argparse.Namespace) -> ServerTrust:
    """What the flags say.

    Raises:
        ConfigError: both are given, or the file cannot be used.
    """
    trust = ServerTrust(options.cacert, options.insecure)
    if trust.cacert and trust.is_insecure:
        raise ConfigError("--cacert says whose certificates to accept, and --insecure accepts any: leave one out")
    if trust.is_given:
        trust.context()  # Said before anything else is done.
    return trust


def connection_advice(failure: str) -> str:
    """What to do about a connection that failed for its protocol or certificate; empty where it did for neither."""
    if "CERTIFICATE_VERIFY_FAILED" in failure:
        return "give the CA that signed its certificate by --cacert FILE or SSL_CERT_FILE; --insecure accepts any"
    if "WRONG_VERSION_NUMBER" in failure or "record layer failure" in failure:
        return "it answers without TLS: does its address begin with http://?"
    if "disconnected without sending" in failure:
        return "does its address begin with https://?"
    return ""


def _folder(file: str) -> str | None:
    return None if file else os.environ.get("SSL_CERT_DIR") or None
