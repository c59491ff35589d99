"""Connections of commands to a server: the TLS certificates that they accept, and advice where one fails."""

import os
import ssl
from pathlib import Path

import msgspec

from pyllm.errors import ConfigError


class ServerTrust(msgspec.Struct, frozen=True):
    """The CA certificates in the file `cacert`, or any certificate if `is_insecure`.

    Without either, those of SSL_CERT_FILE and SSL_CERT_DIR hold, as in OpenSSL, or else the default ones.
    """

    cacert: str = ""
    is_insecure: bool = False

    @property
    def is_given(self) -> bool:
        """Whether a flag was given."""
        return self != ServerTrust()

    def verify(self) -> ssl.SSLContext | bool:
        """The `verify` argument of `httpx2`, whose own default certificates serve machines that have none."""
        is_said = self.is_given or "SSL_CERT_FILE" in os.environ or "SSL_CERT_DIR" in os.environ
        return self.context() if is_said else True

    def context(self) -> ssl.SSLContext:
        """The TLS context of connections; it reads no certificates where any is accepted.

        Raises:
            ConfigError: the file or the folder cannot be used.
        """
        if self.is_insecure:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            return context
        file = self.cacert or os.environ.get("SSL_CERT_FILE", "")
        folder = "" if file else os.environ.get("SSL_CERT_DIR", "")
        try:
            if file and not Path(file).read_bytes():
                raise OSError("it is empty")
            return ssl.create_default_context(cafile=file or None, capath=folder or None)
        except OSError as error:
            name = "--cacert" if self.cacert else "SSL_CERT_FILE" if file else "SSL_CERT_DIR"
            where, reason = file or folder, error.strerror or error
            raise ConfigError(f"cannot use the CA certificates {where} of {name}: {reason}") from None


DEFAULT_TRUST = ServerTrust()


def connection_advice(failure: str) -> str:
    """Advice on a connection that failed for its protocol or certificate; empty where it failed for another reason."""
    if "CERTIFICATE_VERIFY_FAILED" in failure:
        return "give the CA that signed its certificate by --cacert FILE or SSL_CERT_FILE; --insecure accepts any"
    if "WRONG_VERSION_NUMBER" in failure or "record layer failure" in failure:
        return "it answers without TLS: does its address begin with http://?"
    if "disconnected without sending" in failure:
        return "does its address begin with https://?"
    return ""
