"""Litestar's application with one handler of OPTIONS for all routes. Knows no route by name."""

from copy import copy
from functools import cached_property
from typing import Any

from litestar import Litestar, Request, Response, Router, route
from litestar.handlers import HTTPRouteHandler
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin
from litestar.types import RouteHandlerType
from litestar.types.internal_types import RouteHandlerMapItem


class RoutesApp(Litestar):
    """Answers OPTIONS with all methods of the path.

    Litestar makes a handler of OPTIONS for each path: half of all handlers, each with a signature to parse. Its answer
    lists the methods of only the first handler of the path.

    Has none of the plugins for pydantic and attrs, which Litestar would import wherever they are installed.
    """

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return [*plugins, MsgspecDIPlugin()]

    def get_route_handler_map(  # type: ignore[override]  # Litestar calls the class method on an application only.
        self, value: "RouteHandlerType | Router"
    ) -> dict[str, RouteHandlerMapItem]:
        """The handlers to register, by path and method."""
        handlers = Litestar.get_route_handler_map(value)
        known = {route.path for route in self.routes}
        for path in handlers.keys() - known:
            handlers[path]["OPTIONS"] = self._tell_methods
        return handlers

    @cached_property
    def _tell_methods(self) -> HTTPRouteHandler:
        handler = copy(_tell_methods)
        handler.owner = self
        return handler


@route("/", http_method="OPTIONS", sync_to_thread=False, include_in_schema=False)
def _tell_methods(request: Request[Any, Any, Any]) -> Response[None]:
    path = request.scope["path_template"]
    methods = next(route.methods for route in request.app.routes if route.path_format == path)
    return Response(None, status_code=204, headers={"Allow": ", ".join(sorted(methods))})
