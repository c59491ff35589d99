"""Writes down each request that reaches an application, as one line of JSON. Changes neither request nor answer."""

import json
from pathlib import Path
from typing import Any

from pyllm.frontend.http.asgi import Receive, Scope, Send

# Their values are secrets.
KEYS = frozenset({"authorization", "x-api-key", "api-key"})


class Recorder:
    """The application behind it, with a record in `path`: method, path, headers without keys, and the body."""

    def __init__(self, app: Any, path: Path) -> None:
        self._app = app
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on; write it down however it ends."""
        body = bytearray()

        async def read() -> Any:
            message: Any = await receive()
            if message["type"] == "http.request":
                body.extend(message.get("body", b""))
            return message

        try:
            await self._app(scope, read, send)
        finally:
            self._write(scope, bytes(body))

    def _write(self, scope: Any, body: bytes) -> None:
        names = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        query = scope["query_string"].decode("latin-1")
        request = {
            "method": scope["method"],
            "path": scope["path"] + (f"?{query}" if query else ""),
            "headers": {name: value for name, value in names.items() if name not in KEYS},
            "body": _parsed(body),
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(request, ensure_ascii=False) + "\n")


def _parsed(body: bytes) -> Any:
    """The JSON of a body; what is none of it as text, None for nothing."""
    try:
        return json.loads(body) if body else None
    except ValueError:
        return body.decode("utf-8", "replace")
