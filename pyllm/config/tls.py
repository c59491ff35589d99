"""The server's side of TLS, from PEM. `launch` checks it before processes start; API processes use it."""

import contextlib
import os
import ssl
from collections.abc import Generator

from pyllm.config.credentials import Credentials
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import ConfigError


def tls_context(server: ServerConfig, credentials: Credentials) -> ssl.SSLContext | None:
    """The TLS context of the server; None without a certificate.

    With `ssl_ca_certs`, clients must present a certificate that one of them signed, unless `ssl_cert_reqs` says less.

    Raises:
        ConfigError: a file is no PEM, the key does not match the certificate, or settings conflict.
    """
    if not server.ssl_certfile:
        if server.ssl_keyfile or server.ssl_ca_certs or server.ssl_cert_reqs:
            raise ConfigError(
                "ssl_keyfile, ssl_ca_certs and ssl_cert_reqs go with a certificate: give --ssl-certfile, too"
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    _load(context, server, credentials)
    if server.ssl_ca_certs:
        context.verify_mode = (
            ssl.CERT_REQUIRED if server.ssl_cert_reqs is None else ssl.VerifyMode(server.ssl_cert_reqs)
        )
    elif server.ssl_cert_reqs:
        raise ConfigError(
            f"ssl_cert_reqs {server.ssl_cert_reqs} checks certificates of clients: give --ssl-ca-certs, too"
        )
    return context


def _load(context: ssl.SSLContext, server: ServerConfig, credentials: Credentials) -> None:
    key = server.ssl_keyfile or server.ssl_certfile
    with _file_of(credentials.certificate) as certificate_file, _file_of(credentials.private_key) as key_file:
        try:
            context.load_cert_chain(certificate_file, key_file, password=_refuse_password)
        except OSError as error:
            raise ConfigError(f"cannot use the certificate {server.ssl_certfile} with the key {key}: {error}") from None
    if server.ssl_ca_certs:
        with _file_of(credentials.ca_certificates) as file:
            try:
                context.load_verify_locations(file)
            except OSError as error:
                raise ConfigError(f"cannot use the CA certificates {server.ssl_ca_certs}: {error}") from None


@contextlib.contextmanager
def _file_of(content: bytes) -> Generator[str, None, None]:
    """A path to the content, since OpenSSL's functions take only paths; the file is in this process's memory."""
    with os.fdopen(os.memfd_create("pem"), "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def _refuse_password() -> str:
    """Raise for an encrypted key; without this callback OpenSSL would ask on the terminal."""
    raise ConfigError("the TLS key is encrypted; store it decrypted, readable by the server's user only")
