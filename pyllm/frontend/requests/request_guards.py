"""Guards of routes that are for admins. Knows no route."""

from collections.abc import Callable

from pyllm.frontend.http.asgi import Scope
from pyllm.frontend.http.failure import ForbiddenError
from pyllm.frontend.requests.request_context import context_in
from pyllm.frontend.requests.server_state import ServerState

Guard = Callable[[Scope], None]


def admins_only(state: ServerState) -> Guard:
    """A guard that refuses callers who are no admins."""

    def check(scope: Scope) -> None:
        if context_in(scope).role != "admin":
            raise ForbiddenError(_refusal(state.keys.has_admin))

    return check


def admins_where_keys(state: ServerState) -> Guard:
    """The same where keys tell users apart; a server without keys lets everybody pass."""
    check_admin = admins_only(state)

    def check(scope: Scope) -> None:
        if state.keys:
            check_admin(scope)

    return check


def _refusal(has_admin: bool) -> str:
    if has_admin:
        return "Only keys of the role admin may use this route."
    make = "make one with `pyllm apikey NAME --role admin`"
    return f"No key has the role admin: {make}, or start the server with --admin-on-loopback."
