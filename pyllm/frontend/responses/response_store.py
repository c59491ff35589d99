"""Stores the responses of one server as structs, and lists the background runs of this process. Knows no route."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

import msgspec

from pyllm.errors import RequestError
from pyllm.frontend.http.failure import UnknownResponseError
from pyllm.frontend.responses.protocol import Response, ResponseRecord
from pyllm.frontend.shared.remote_state import Shared

# JSON, as parts of a record may be JSON already.
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ResponseRecord).decode


class Run(Protocol):
    """A response that is computed in the background."""

    @property
    def response(self) -> Response:
        """The response so far."""

    def cancel(self) -> None:
        """End the run, and store the response so far."""

    def abandon(self) -> None:
        """End the run, and store nothing."""


class ResponseStore:
    """The store; `shared` is None on a server that stores none. `running` has the background runs by response id."""

    def __init__(self, shared: Shared | None) -> None:
        self._shared = shared
        self._tasks: set[asyncio.Task[None]] = set()
        self.running: dict[str, Run] = {}

    @property
    def enabled(self) -> bool:
        """Whether the server stores responses."""
        return self._shared is not None

    def store_or_refuse(self, wanted: bool | None, background: bool) -> bool:
        """Whether to store a response; true unless its request or the server says otherwise.

        Raises:
            RequestError: the request wants it on a server that stores none, or refuses it but runs in the background.
        """
        if background and wanted is False:
            raise RequestError("background requires store: true", "background")
        if (wanted or background) and not self.enabled:
            name = "store" if wanted else "background"
            raise RequestError(f"{name}: this server stores no responses (--max-stored-responses 0)", name)
        return self.enabled and wanted is not False

    async def find(self, response_id: str, owner: str) -> ResponseRecord | None:
        """A record, if it is still stored and belongs to this owner."""
        record = None if self._shared is None else await self._shared.get_response(response_id, owner)
        return None if record is None else _decode(record)

    async def get(self, response_id: str, owner: str) -> ResponseRecord:
        """A record.

        Raises:
            UnknownResponseError: it is not stored.
        """
        record = await self.find(response_id, owner)
        if record is None:
            raise UnknownResponseError(response_id)
        return record

    async def put(self, record: ResponseRecord, owner: str) -> None:
        """Store a record."""
        if self._shared is not None:
            await self._shared.put_response(record.response.id, owner, _encode(record))

    def put_soon(self, record: ResponseRecord, owner: str) -> None:
        """Store a record as it is now, from code that cannot wait."""
        if self._shared is not None:
            self._begin(self._shared.put_response(record.response.id, owner, _encode(record)))

    async def delete(self, response_id: str, owner: str) -> None:
        """Drop a record.

        Raises:
            UnknownResponseError: it is not stored.
        """
        if self._shared is None or not await self._shared.delete_response(response_id, owner):
            raise UnknownResponseError(response_id)

    def _begin(self, storing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(storing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
