"""Counts every request and, with `--access-log`, logs it once its answer has ended, in success or failure.

The outermost application: it sees answers that no route has made. Knows neither keys nor bodies.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable

from pyllm.frontend.edge.gateway import PROBES
from pyllm.frontend.http.asgi import ASGIApp, Message, Receive, Scope, Send
from pyllm.frontend.http.routing import PathTable, path_format
from pyllm.frontend.http.unknown_routes import normal_path
from pyllm.frontend.observability.http_counts import NO_ROUTE, HttpCounts
from pyllm.frontend.requests.request_context import REQUEST_ID

# Requests of monitors, which would be the majority; vLLM's server does not count them, either.
NOT_COUNTED = PROBES | {"/load", "/metrics", "/metrics/history", "/version", "/server_info"}
# nginx's status for a client that left before there was an answer.
CLIENT_GONE = 499
FAILED = 500

logger = logging.getLogger(__name__)


class RouteNames:
    """The route that a path belongs to, by the routes' own paths, such as `/admin/requests/{name:str}`."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths: dict[str, None] = {}
        self.add(paths)

    def add(self, paths: Iterable[str]) -> None:
        """Know these routes, too."""
        self._paths |= dict.fromkeys(paths)
        self._names = PathTable({path: path_format(path) for path in self._paths})

    def name(self, path: str) -> str:
        """The route's path with the names of its parameters; `none` where there is no route."""
        found = self._names.find(path)
        return NO_ROUTE if found is None else found[0]


class AccessLog:
    """An application whose requests are counted, and logged if `is_logged`."""

    def __init__(
        self,
        app: ASGIApp,
        routes: RouteNames,
        counts: HttpCounts,
        *,
        is_logged: bool = False,
        root_path: str = "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._app = app
        self._routes = routes
        self._counts = counts
        self._is_logged = is_logged
        self._root_path = root_path
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, status, start = normal_path(scope["path"], self._root_path), CLIENT_GONE, self._clock()

        # Returns the server's coroutine instead of awaiting it: pushed answers drive that one by hand.
        def answer(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            return send(message)

        try:
            await self._app(scope, receive, answer)
        except Exception:
            status = FAILED
            raise
        finally:
            seconds = self._clock() - start
            if path not in NOT_COUNTED:
                self._counts.observe(scope["method"], self._routes.name(path), status, seconds)
            if self._is_logged and path not in PROBES:
                _log(scope, status, seconds)


def _log(scope: Scope, status: int, seconds: float) -> None:
    """Log a request without its query, which may have a secret, and with its raw path, which has no line ends."""
    client, path = scope["client"], scope.get("raw_path", b"").decode("latin-1")
    request_id = scope.get(REQUEST_ID)
    address = f"{client[0]}:{client[1]}" if client else "unix"
    fields = {
        "client": address,
        "method": scope["method"],
        "path": path,
        "status": status,
        "seconds": round(seconds, 6),
    }
    logger.info(
        '%s "%s %s" %d %.3f s, request %s',
        *(address, scope["method"], path, status, seconds, request_id or "-"),
        extra={"request_id": request_id, "fields": fields},
    )
