"""The API keys and the certificate that a server's API processes have. Only this process reads the files."""

import logging

import msgspec

from pyllm.config.credentials import Credentials, read_credentials
from pyllm.config.server_settings import ServerConfig
from pyllm.config.tls import tls_context
from pyllm.errors import ConfigError
from pyllm.launch.service_manager import ServiceManager

logger = logging.getLogger(__name__)


class LiveCredentials:
    """`current` are in force, and begin as those that the server started with. `service` hears when they are read."""

    def __init__(self, server: ServerConfig, credentials: Credentials, service: ServiceManager) -> None:
        self.current = credentials
        self._server = server
        self._service = service
        self._is_asked = False
        self._news = b""

    def ask(self, *_: object) -> None:
        """Have the files read again, at the next look at the news: a handler of signals, too."""
        self._is_asked = True

    def news(self) -> bytes:
        """For API processes: `current`, encoded anew each time that it was read again; empty before.

        Files that cannot be used change nothing, but are news all the same: an API process that was asked itself may
        have read them a moment earlier, when they could be used.
        """
        if self._is_asked:
            self._is_asked = False
            self._read()
            self._news = msgspec.msgpack.encode(self.current)
            self._service.reloaded()
        return self._news

    def _read(self) -> None:
        try:
            credentials = read_credentials(self._server, self.current.fixed_keys)
            tls_context(self._server, credentials)
        except ConfigError as error:
            logger.error("keys and certificates stay as they are: %s", error)
        else:
            self.current = credentials
            logger.info("read again: %s", credentials.summary())
