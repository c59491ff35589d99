"""The API keys and the certificate of a server, which can be read again while it runs. Knows no request."""

import logging

from pyllm.config.api_keys import KeyRing, read_api_keys
from pyllm.config.server_settings import ServerConfig
from pyllm.config.tls import load_certificates, tls_context

logger = logging.getLogger(__name__)


class Credentials:
    """`keys` are those that the server takes, and `tls` is what connections are encrypted with, None without TLS.

    Both stay the same objects, whatever is read.
    """

    def __init__(self, server: ServerConfig, keys: KeyRing) -> None:
        self.keys = keys
        self.tls = tls_context(server)
        self._server = server

    def reload(self) -> None:
        """Read the file of keys and the certificate's files again. Connections that are open stay as they are.

        Keys of flags and of the environment stay, too.

        Raises:
            ConfigError: a file cannot be used; then nothing has changed.
        """
        file = self._server.api_key_file
        keys = (*self.keys.fixed, *read_api_keys(file, {})) if file else self.keys.entries
        tls_context(self._server)  # Before anything is changed.
        if self.tls is not None:
            load_certificates(self.tls, self._server)
        self.keys.replace(keys)
        logger.info("read again: %d API keys%s", len(keys), ", the certificate" if self.tls is not None else "")
