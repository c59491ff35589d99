"""Guards of routes that are for admins. Knows no route."""

from collections.abc import Callable

from pyllm.config.api_keys import KeyRing
from pyllm.frontend.http.asgi import Scope
from pyllm.frontend.http.failure import ForbiddenError
from pyllm.frontend.requests.request_context import context_in

Guard = Callable[[Scope], None]


def admins_only(keys: KeyRing) -> Guard:
    """A guard that raises `ForbiddenError` for callers who are no admins."""

    def guard(scope: Scope) -> None:
        if context_in(scope).role != "admin":
            raise ForbiddenError(_refusal(keys.has_admin))

    return guard


def admins_where_keys(keys: KeyRing) -> Guard:
    """The same where keys tell users apart; a server without keys lets everybody pass."""
    check_admin = admins_only(keys)

    def guard(scope: Scope) -> None:
        if keys:
            check_admin(scope)

    return guard


def _refusal(has_admin: bool) -> str:
    if has_admin:
        return "Only keys of the role admin may use this route."
    make = "make one with `pyllm apikey NAME --role admin`"
    return f"No key has the role admin: {make}, or start the server with --admin-on-loopback."
