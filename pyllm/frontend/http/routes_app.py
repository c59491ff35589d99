"""The application of all routes: finds the route of a request, and calls it. Knows no route by name."""

import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pyllm.errors import RequestError
from pyllm.frontend.http.asgi import ASGIApp, Message, Receive, Scope, Send
from pyllm.frontend.http.failure import MethodError, UnknownRouteError
from pyllm.frontend.http.routing import PathTable, Request, Response, Route

# Decodes the body of a request as a type.
Decode = Callable[[Request, Any], Awaitable[Any]]
AnswerError = Callable[[Request, Exception], ASGIApp]

_SLASHES = re.compile("//+")


class RoutesApp:
    """Answers requests by their routes, what these raise by `answer_error`, and OPTIONS with the methods of a path."""

    def __init__(self, routes: Sequence[Route], decode: Decode, answer_error: AnswerError) -> None:
        self.routes = routes
        self._decode = decode
        self._answer_error = answer_error
        by_path: dict[str, dict[str, Route]] = {}
        for route in routes:
            for path in route.paths:
                by_path.setdefault(path, {}).update(dict.fromkeys(route.methods, route))
        self._by_path = PathTable(by_path)

    def has(self, scope: Scope) -> bool:
        """Whether the path of a request is that of a route."""
        return self._by_path.find(_route_path(scope)) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        is_started = False

        # Returns the server's coroutine instead of awaiting it: pushed answers drive that one by hand.
        def answer(message: Message) -> Awaitable[None]:
            nonlocal is_started
            is_started = True
            return send(message)

        request = Request(scope, receive)
        try:
            respond = await self._call(request)
            await respond(scope, receive, answer)
        except Exception as error:
            if is_started:
                raise
            await self._answer_error(request, error)(scope, receive, send)

    async def _call(self, request: Request) -> ASGIApp:
        by_method, arguments = self._find(request.scope)
        method = request.scope["method"]
        route = by_method.get(method)
        if route is None:
            methods = {*by_method, "OPTIONS"}
            if method == "OPTIONS":
                return Response(None, status_code=204, headers={"allow": ", ".join(sorted(methods))})
            raise MethodError(sorted(methods, key=lambda name: (name == "OPTIONS", name)))
        if route.guard is not None:
            route.guard(request.scope)
        if route.query:
            arguments |= route.from_query(request.query)
        if route.takes_request:
            arguments["request"] = request
        if route.body is not None:
            if not await request.body():
                raise RequestError("The request has no body; send a JSON object.")
            arguments["data"] = await self._decode(request, route.body)
        result = route.fn(**arguments)
        if inspect.iscoroutine(result):
            result = await result
        return result if callable(result) else Response(result, status_code=route.status_code)

    def _find(self, scope: Scope) -> tuple[dict[str, Route], dict[str, Any]]:
        """The routes of a path by method, and the path's parameters.

        Raises:
            UnknownRouteError: there is none.
        """
        path = _route_path(scope)
        if (found := self._by_path.find(path)) is None:
            raise UnknownRouteError(f"There is no route {path[:200]}.")
        return found


def _route_path(scope: Scope) -> str:
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    return _SLASHES.sub("/", f"/{path}").rstrip("/") or "/"
