"""The current API keys and certificate of a server's API processes. Only the launcher reads their files."""

import logging

import msgspec

from pyllm.config.credentials import Credentials, read_credentials
from pyllm.config.server_settings import ServerConfig
from pyllm.config.tls import tls_context
from pyllm.errors import ConfigError
from pyllm.launch.service_manager import ServiceManager

logger = logging.getLogger(__name__)


class LiveCredentials:
    """Credentials that can be reloaded. `current` begins as those at start; `service` is notified of each reload.

    `is_asked`: the next call of `news` reloads them.
    """

    def __init__(self, server: ServerConfig, credentials: Credentials, service: ServiceManager) -> None:
        self.current = credentials
        self._server = server
        self._service = service
        self.is_asked = False
        self._news = b""

    def ask(self, *_: object) -> None:
        """Reload the files at the next call of `news`. May be used as a signal handler."""
        self.is_asked = True

    def news(self) -> bytes:
        """`current`, encoded, for API processes; encoded anew after each reload, and empty before the first.

        Unusable files leave `current` unchanged, and it is still sent again: an API process that answered
        `POST /admin/reload` has read the files a moment earlier, when they may have been usable.
        """
        if self.is_asked:
            self.is_asked = False
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
