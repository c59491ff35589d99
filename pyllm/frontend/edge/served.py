"""The server as its edge knows it: one model, or a catalogue of models."""

from typing import Protocol

from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.observability.http_counts import HttpCounts
from pyllm.frontend.requests.server_credentials import ServerCredentials


class Served(Protocol):
    """A `ServerState` or a `Catalogue`. While it is `draining`, connections end with their answers."""

    server: ServerConfig
    credentials: ServerCredentials
    draining: bool

    @property
    def http(self) -> HttpCounts:
        """The counts of its requests."""

    async def drain(self, grace: float) -> None:
        """Refuse new requests; give running ones `grace` seconds to finish, then end them with an error."""
