"""Middleware that the user names by import path: ASGI applications around ours. Does not know what they do.

With middleware, parts of streams go through ASGI's `send`, not straight to the socket.
"""

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import cast

from pyllm.errors import ConfigError
from pyllm.frontend.http.asgi import ASGIApp, Receive, Scope, Send
from pyllm.frontend.http.pushed_response import CONNECTION

Middleware = Callable[[ASGIApp], ASGIApp]


def with_middleware(app: ASGIApp, names: Sequence[str]) -> ASGIApp:
    """The application with middleware around it, the first name outermost; itself where there are no names.

    Raises:
        ConfigError: one of them cannot be imported, or is no middleware.
    """
    if not names:
        return app
    for name in reversed(names):
        app = load_middleware(name)(app)
    outermost = app

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        # No part of an answer may bypass the middleware.
        scope.pop(CONNECTION, None)
        await outermost(scope, receive, send)

    return serve


def load_middleware(name: str) -> Middleware:
    """Import the middleware `module.Class` or `module:function`: called with an application, it returns one.

    Raises:
        ConfigError: there is no such thing, or it takes requests instead.
    """
    module, _, attribute = name.replace(":", ".").rpartition(".")
    try:
        middleware = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"cannot import the middleware {name}: {error}; write module.Class") from None
    if not callable(middleware) or inspect.iscoroutinefunction(middleware):
        raise ConfigError(
            f"the middleware {name} must be a class, or a function, that is called with an ASGI application and gives "
            "one; functions of a request are not supported"
        )
    return cast("Middleware", middleware)
