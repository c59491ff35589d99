"""The API keys and the certificate that an API process uses, which may change while it runs. Knows no request."""

from collections.abc import Callable

from pyllm.config.api_keys import KeyRing
from pyllm.config.credentials import Credentials, read_credentials
from pyllm.config.server_settings import ServerConfig
from pyllm.config.tls import tls_context


class ServerCredentials:
    """The `keys` that the server accepts, and the `tls` context of new connections, None without TLS.

    `keys` stays the same object. `on_tls` is called when `tls` has been replaced.
    """

    def __init__(self, server: ServerConfig, credentials: Credentials) -> None:
        self.keys = KeyRing(credentials.keys)
        self.tls = tls_context(server, credentials)
        self.on_tls: Callable[[], None] = lambda: None
        self._server = server
        self._credentials = credentials

    def reload(self) -> None:
        """Read the file of keys and the certificate's files again. Connections that are open stay as they are.

        Raises:
            ConfigError: a file cannot be used; then nothing has changed.
        """
        self.replace(read_credentials(self._server, self._credentials.fixed_keys))

    def replace(self, credentials: Credentials) -> None:
        """Use these from now on.

        Raises:
            ConfigError: the certificate cannot be used; then nothing has changed.
        """
        if credentials == self._credentials:
            return
        tls = tls_context(self._server, credentials)  # The old context would trust its CAs and sessions.
        self.keys.replace(credentials.keys)
        self._credentials = credentials
        if tls is not None:
            self.tls = tls
            self.on_tls()
