"""The server's side of TLS, from PEM files. Checked in launch, before processes are started; used in API processes."""

import ssl

from pyllm.config.server_settings import ServerConfig
from pyllm.errors import ConfigError


def tls_context(server: ServerConfig) -> ssl.SSLContext | None:
    """What connections are encrypted with; None where no certificate is named.

    With `ssl_ca_certs` clients must show a certificate that one of them has signed, unless `ssl_cert_reqs` says less.

    Raises:
        ConfigError: a file cannot be read, the key is not the certificate's, or the settings do not go together.
    """
    if not server.ssl_certfile:
        if server.ssl_keyfile or server.ssl_ca_certs or server.ssl_cert_reqs:
            raise ConfigError(
                "ssl_keyfile, ssl_ca_certs and ssl_cert_reqs go with a certificate: give --ssl-certfile, too"
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    load_certificates(context, server)
    if server.ssl_ca_certs:
        context.verify_mode = (
            ssl.CERT_REQUIRED if server.ssl_cert_reqs is None else ssl.VerifyMode(server.ssl_cert_reqs)
        )
    elif server.ssl_cert_reqs:
        raise ConfigError(
            f"ssl_cert_reqs {server.ssl_cert_reqs} checks certificates of clients: give --ssl-ca-certs, too"
        )
    return context


def load_certificates(context: ssl.SSLContext, server: ServerConfig) -> None:
    """Read the files into a context, also into one that is in use: connections that come then have what was read.

    A CA certificate that was read before is still believed.

    Raises:
        ConfigError: a file cannot be read, or the key is not the certificate's.
    """
    key = server.ssl_keyfile or server.ssl_certfile
    try:
        context.load_cert_chain(server.ssl_certfile, key, password=_refuse_password)
    except OSError as error:
        raise ConfigError(f"cannot use the certificate {server.ssl_certfile} with the key {key}: {error}") from None
    if server.ssl_ca_certs:
        try:
            context.load_verify_locations(server.ssl_ca_certs)
        except OSError as error:
            raise ConfigError(f"cannot use the CA certificates {server.ssl_ca_certs}: {error}") from None


def _refuse_password() -> str:
    """Called for an encrypted key; without it OpenSSL would ask on the terminal."""
    raise ConfigError("the TLS key is encrypted; store it decrypted, readable by the server's user only")
