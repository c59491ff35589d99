"""Middleware as a user may write it."""

from typing import Any


class Stamp:
    """Adds a header to every answer, and counts the parts of bodies."""

    parts = 0

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def stamped(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-stamp", b"inner")]
            else:
                Stamp.parts += 1
            await send(message)

        await self.app(scope, receive, stamped)


def outermost(app: Any) -> Any:
    """The same as a function, which sees the other's header."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        async def seen(message: Any) -> None:
            if message["type"] == "http.response.start":
                stamps = [value for name, value in message["headers"] if name == b"x-stamp"]
                message["headers"] = [*message["headers"], (b"x-seen", b",".join(stamps))]
            await send(message)

        await app(scope, receive, seen)

    return serve


async def of_requests(request: Any, call_next: Any) -> Any:
    """Of the other kind, which Starlette has."""
    return await call_next(request)
