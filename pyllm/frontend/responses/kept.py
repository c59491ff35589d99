"""The stored responses of one server, as structs, and the background runs of this process. Knows no route."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

import msgspec

from pyllm.errors import RequestError
from pyllm.frontend.failure import UnknownResponseError
from pyllm.frontend.responses.protocol import Response, ResponseRecord
from pyllm.frontend.shared.client import Shared

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ResponseRecord).decode


class Run(Protocol):
    """What goes on without a reader."""

    @property
    def response(self) -> Response:
        """As far as it is."""

    def cancel(self) -> None:
        """End it, and store what there is."""

    def abandon(self) -> None:
        """End it, and store nothing."""


class KeptResponses:
    """`store` is None on a server that keeps none. `running` has the background runs by the ids of their responses."""

    def __init__(self, store: Shared | None) -> None:
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()
        self.running: dict[str, Run] = {}

    @property
    def enabled(self) -> bool:
        """Whether anything is kept."""
        return self._store is not None

    def store_or_refuse(self, wanted: bool | None, background: bool) -> bool:
        """Whether a response is to be stored, which it is unless its request or the server says otherwise.

        Raises:
            RequestError: the request wants it on a server that keeps none, or does not but needs it.
        """
        if background and wanted is False:
            raise RequestError("background goes with store: true only", "background")
        if (wanted or background) and not self.enabled:
            name = "store" if wanted else "background"
            raise RequestError(f"{name}: this server stores no responses (--max-stored-responses 0)", name)
        return self.enabled and wanted is not False

    async def find(self, response_id: str, owner: str) -> ResponseRecord | None:
        """A record, if it is still there and this owner's."""
        record = None if self._store is None else await self._store.get_response(response_id, owner)
        return None if record is None else _decode(record)

    async def get(self, response_id: str, owner: str) -> ResponseRecord:
        """A record.

        Raises:
            UnknownResponseError: it is not there.
        """
        record = await self.find(response_id, owner)
        if record is None:
            raise UnknownResponseError(response_id)
        return record

    async def put(self, record: ResponseRecord, owner: str) -> None:
        """Store a record."""
        if self._store is not None:
            await self._store.put_response(record.response.id, owner, _encode(record))

    def put_soon(self, record: ResponseRecord, owner: str) -> None:
        """Store a record as it is now, from where nothing can be waited for."""
        if self._store is not None:
            self._begin(self._store.put_response(record.response.id, owner, _encode(record)))

    async def delete(self, response_id: str, owner: str) -> None:
        """Drop a record.

        Raises:
            UnknownResponseError: it is not there.
        """
        if self._store is None or not await self._store.delete_response(response_id, owner):
            raise UnknownResponseError(response_id)

    def _begin(self, storing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(storing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
