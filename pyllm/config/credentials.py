"""The API keys and certificate of a server, read from their files together. Knows no process and no request."""

from pathlib import Path

import msgspec

from pyllm.config.api_keys import ApiKey, check_accounts, read_api_keys
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import ConfigError


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """API keys and certificate of a server. Processes get them by message and read no file, so that all have the same.

    `fixed_keys` are from flags and the environment, `file_keys` from the file. The others are PEM, empty without TLS.
    """

    fixed_keys: tuple[ApiKey, ...] = ()
    file_keys: tuple[ApiKey, ...] = ()
    certificate: bytes = b""
    private_key: bytes = b""
    ca_certificates: bytes = b""

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """All keys that the server accepts."""
        return self.file_keys + self.fixed_keys

    def summary(self) -> str:
        """A description for the log, without secrets."""
        return f"{len(self.keys)} API keys{', the certificate' if self.certificate else ''}"

    def __repr__(self) -> str:
        return f"Credentials({self.summary()})"  # The private key must not get into a traceback.


def read_credentials(server: ServerConfig, fixed_keys: tuple[ApiKey, ...] = ()) -> Credentials:
    """Read all files that the settings name; `tls.tls_context` checks the certificate.

    Raises:
        ConfigError: a file cannot be read, or keys of one name have different limits.
    """
    file_keys = read_api_keys(server.api_key_file, {}) if server.api_key_file else ()
    check_accounts(file_keys + fixed_keys)
    if not server.ssl_certfile:  # `tls_context` refuses settings that need a certificate.
        return Credentials(fixed_keys=fixed_keys, file_keys=file_keys)
    return Credentials(
        fixed_keys=fixed_keys,
        file_keys=file_keys,
        certificate=_read("certificate", server.ssl_certfile),
        private_key=_read("TLS key", server.ssl_keyfile or server.ssl_certfile),
        ca_certificates=_read("CA certificates", server.ssl_ca_certs),
    )


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes() if path else b""
    except OSError as error:
        raise ConfigError(f"cannot use the {name} {path}: {error.strerror}") from None
