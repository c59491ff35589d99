"""Refuses requests that a page of another site makes a browser send here. Knows no keys and no routes.

A browser adds nothing secret to such a request, so a server with keys needs none of this. A server without keys is open
to every page that its user visits: a POST without a content type needs no preflight, and a name that an attacker's DNS
turns to an address of this machine, such as 127.0.0.1, makes the attacker's page one of this server's (DNS rebinding).
"""

import ipaddress
import socket
from collections.abc import Sequence

from pyllm.frontend.edge.cors import ANY
from pyllm.frontend.http.asgi import Scope
from pyllm.frontend.http.failure import ForbiddenError
from pyllm.frontend.requests.request_headers import RequestHeaders

_LOCAL_SUFFIXES = (".localhost", ".local", ".internal")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


class BrowserOrigin:
    """The pages that may use one server: its own, and those of `--allowed-origins`.

    `address` is the server's own; empty where no name can lead a browser to it: at a Unix socket, and under TLS, where
    the certificate has to have the name. Elsewhere browsers may use these names: local ones, this machine's, `address`
    itself, and those of `--allowed-hosts` and `--allowed-origins`. On an address that is not loopback also names
    without a dot, which public DNS does not have; an attacker who controls local names reaches the server anyway.
    """

    def __init__(self, allowed_origins: Sequence[str], allowed_hosts: Sequence[str], address: str) -> None:
        self._origins = frozenset(origin.lower() for origin in allowed_origins)
        self._hosts = frozenset(host.lower() for host in allowed_hosts)
        self._any_name = not address or ANY in self._origins
        self._takes_short_names = not is_loopback(address)
        named = {host_name(origin.partition("://")[2]) for origin in self._origins}
        self._names = ({"localhost", socket.gethostname().lower(), address.lower()} | named) - {""}

    def check_host(self, head: RequestHeaders) -> None:
        """Refuse a host that `--allowed-hosts`, where given, does not name. A host without DNS always passes.

        Raises:
            ForbiddenError: the host is not allowed.
        """
        if self._hosts and (name := host_name(head.host)) not in self._hosts and not _is_without_dns(name):
            raise ForbiddenError(f"The host {head.host!r:.80} is not one of --allowed-hosts.")

    def check_name(self, head: RequestHeaders) -> None:
        """Refuse a request that a browser sends to a server without keys under a name that may be an attacker's.

        Raises:
            ForbiddenError: the name may be an attacker's.
        """
        # Where --allowed-hosts is given, `check_host` has checked. An application's page has no host.
        if self._any_name or self._hosts or not head.is_from_browser or head.is_from_application:
            return
        if head.origin is not None and head.origin.decode("latin-1").lower() in self._origins:
            return
        name = host_name(head.host)
        if not self._is_own_name(name):
            raise ForbiddenError(
                f"This server has no API keys, and answers browsers under its own names only: {name!r:.80} is none of "
                "them. If it is, name it in --allowed-hosts."
            )

    def check_page(self, head: RequestHeaders) -> None:
        """Refuse an unsafe request that a page of another site sends to a server without keys.

        Raises:
            ForbiddenError: the page is neither this server's nor one of --allowed-origins.
        """
        if head.origin is None:  # Not a browser: browsers send it with every request but plain GETs.
            return
        origin = head.origin.decode("latin-1").lower()
        if ANY in self._origins or origin in self._origins:
            return
        if not (head.is_from_own_page or _is_of(origin, head.host) or _is_of(origin, head.forwarded_host)):
            raise ForbiddenError(f"Pages of {origin!r:.80} may not use this server; name them in --allowed-origins.")

    def _is_own_name(self, name: str) -> bool:
        if _is_without_dns(name):
            return True
        name = name.removesuffix(".")
        is_short = self._takes_short_names and name != "" and "." not in name
        return is_short or name in self._names or name.endswith(_LOCAL_SUFFIXES)


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


def _is_without_dns(name: str) -> bool:
    """Whether it is an address or this machine's loopback, which an attacker's DNS cannot lead elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return is_loopback(name)
    return True


def host_name(host: str) -> str:
    """A Host header's name or address, without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_of(origin: str, host: str) -> bool:
    """Whether a page's origin is that of a Host header. An application's own scheme, as app://, is no page's."""
    scheme, _, authority = origin.partition("://")
    if scheme not in _DEFAULT_PORTS:
        return origin != "null"
    port = _DEFAULT_PORTS[scheme]
    return authority.removesuffix(port) == host.removesuffix(port) != ""
