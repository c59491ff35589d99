"""Refuses what a page of another site has a browser send to this server. Knows no keys and no routes.

A browser adds nothing secret to such a request, so a server with keys needs none of this. One without is open to every
page that its user visits: a POST without a content type needs no preflight, and a name that an attacker's DNS turns to
127.0.0.1 makes the attacker's page one of this server's.
"""

import ipaddress
import socket
from collections.abc import Sequence

from litestar.types import Scope

from pyllm.frontend.edge.cors import ANY
from pyllm.frontend.edge.request_headers import RequestHeaders
from pyllm.frontend.http.failure import ForbiddenError

_LOCAL_SUFFIXES = (".localhost", ".local", ".internal")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


class BrowserOrigin:
    """The pages that may use one server: its own, and those of `--allowed-origins`.

    Where it listens on a loopback address, its own page has a local name, or one of `--allowed-hosts`.
    """

    def __init__(self, allowed_origins: Sequence[str], allowed_hosts: Sequence[str], address: str) -> None:
        self._origins = frozenset(origin.lower() for origin in allowed_origins)
        self._hosts = frozenset(host.lower() for host in allowed_hosts)
        self._is_local = is_loopback(address)

    def check_host(self, head: RequestHeaders) -> None:
        """Where `--allowed-hosts` names hosts, the request's is one of them.

        Raises:
            ForbiddenError: it is not.
        """
        if self._hosts and host_name(head.host) not in self._hosts:
            raise ForbiddenError(f"The host {head.host!r:.80} is not one of --allowed-hosts.")

    def check_page(self, head: RequestHeaders) -> None:
        """Refuse an unsafe request that a page of another site sends to a server without keys.

        Raises:
            ForbiddenError: a browser sends it for a page that is not this server's, and is not named.
        """
        if head.origin is None:  # No browser: these send it with every request but plain GETs.
            return
        origin = head.origin.decode("latin-1").lower()
        if ANY in self._origins or origin in self._origins:
            return
        if not (head.is_from_own_page or _is_of(origin, head.host) or _is_of(origin, head.forwarded_host)):
            raise ForbiddenError(f"Pages of {origin!r:.80} may not use this server; name them in --allowed-origins.")
        name = host_name(head.host)
        if self._is_local and not self._hosts and not _is_local_name(name):
            raise ForbiddenError(f"This server is local, and {name!r:.80} is not; name it in --allowed-hosts.")


def is_local_program(scope: Scope, head: RequestHeaders) -> bool:
    """Whether a program of this machine sends the request, or a browser on it for a page of this server.

    A proxy on this machine passes on anybody's requests, so those that say that they came through one do not count.
    """
    client = scope["client"]
    if client is None or head.is_forwarded or not is_loopback(client[0]) or not is_loopback(host_name(head.host)):
        return False
    if head.origin is None:
        return True
    origin = head.origin.decode("latin-1").lower()
    # An extension of a browser has a scheme of its own, and is not this server's page.
    return origin.startswith(("http://", "https://")) and _is_of(origin, head.host)


def is_loopback(host: str) -> bool:
    """Whether it is an address of this machine's loopback, or the name of one."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def host_name(host: str) -> str:
    """A Host header's name or address, without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_local_name(name: str) -> bool:
    try:
        ipaddress.ip_address(name)  # DNS has no part in it, so nobody can turn it.
    except ValueError:
        return name in ("localhost", socket.gethostname().lower()) or name.endswith(_LOCAL_SUFFIXES)
    return True


def _is_of(origin: str, host: str) -> bool:
    """Whether a page's origin is that of a Host header. An application's own scheme, as app://, is no page's."""
    scheme, _, authority = origin.partition("://")
    if scheme not in _DEFAULT_PORTS:
        return origin != "null"
    port = _DEFAULT_PORTS[scheme]
    return authority.removesuffix(port) == host.removesuffix(port) != ""
