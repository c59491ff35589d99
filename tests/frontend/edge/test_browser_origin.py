"""Which pages may use a server without keys: its own and those that are named, whatever names DNS gives it."""

from typing import Any, cast

import pytest

from pyllm.frontend.edge.browser_origin import BrowserOrigin, host_name, is_local_program, is_loopback
from pyllm.frontend.edge.request_headers import RequestHeaders
from pyllm.frontend.http.failure import ForbiddenError


def head(**headers: str) -> RequestHeaders:
    return RequestHeaders([(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()])


def is_refused(check: BrowserOrigin, **headers: str) -> bool:
    try:
        check.check_host(head(**headers))
        check.check_page(head(**headers))
    except ForbiddenError:
        return True
    return False


LOCAL = "127.0.0.1:8000"


@pytest.mark.parametrize(
    "headers",
    [
        {"host": LOCAL},  # no browser
        {"host": "llm.example.com"},
        {"host": LOCAL, "origin": f"http://{LOCAL}"},
        {"host": "localhost:8000", "origin": "http://localhost:8000"},
        {"host": "[::1]:8000", "origin": "http://[::1]:8000"},
        {"host": "192.168.1.7", "origin": "http://192.168.1.7:80"},
        {"host": "mybox.local:8000", "origin": "http://mybox.local:8000"},
        {"host": LOCAL, "origin": "https://chat.internal", "x_forwarded_host": "chat.internal"},
        {"host": LOCAL, "origin": "https://chat.example.com", "sec_fetch_site": "same-origin"},
        {"host": LOCAL, "origin": "app://obsidian.md"},
        {"host": LOCAL, "origin": "vscode-webview://abc"},
    ],
)
def test_own_pages_and_programs_may(headers: dict[str, str]) -> None:
    assert not is_refused(BrowserOrigin((), (), "127.0.0.1"), **headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": LOCAL, "origin": "https://evil.com"},
        {"host": LOCAL, "origin": "https://evil.com", "sec_fetch_site": "cross-site"},
        {"host": LOCAL, "origin": "http://127.0.0.1:3000"},  # another server of this machine
        {"host": LOCAL, "origin": "null"},  # a page in a sandboxed frame
        {"host": "evil.com:8000", "origin": "http://evil.com:8000"},  # evil.com is 127.0.0.1 for its DNS
        {"host": "evil.com:8000", "origin": "http://evil.com:8000", "sec_fetch_site": "same-origin"},
        {"host": "", "origin": "http://"},
    ],
)
def test_other_pages_may_not(headers: dict[str, str]) -> None:
    assert is_refused(BrowserOrigin((), (), "127.0.0.1"), **headers)


def test_origins_that_are_named_may() -> None:
    named = BrowserOrigin(("https://Chat.example.com",), (), "127.0.0.1")
    assert not is_refused(named, host=LOCAL, origin="https://chat.example.com")
    assert is_refused(named, host=LOCAL, origin="https://chat.example.com.evil.com")
    assert not is_refused(BrowserOrigin(("*",), (), "127.0.0.1"), host=LOCAL, origin="https://evil.com")


def test_a_server_for_others_has_any_name() -> None:
    open_to_all = BrowserOrigin((), (), "0.0.0.0")
    assert not is_refused(open_to_all, host="llm.example.com", origin="http://llm.example.com")
    assert is_refused(open_to_all, host="llm.example.com", origin="http://example.com")


def test_hosts_that_are_named_are_all_that_there_are() -> None:
    named = BrowserOrigin((), ("LLM.example.com",), "127.0.0.1")
    assert not is_refused(named, host="llm.example.com:8000")
    assert not is_refused(named, host="llm.example.com", origin="http://llm.example.com")
    for host in ("localhost", LOCAL, "", "llm.example.com.evil.com", "[::1]"):
        assert is_refused(named, host=host)


@pytest.mark.parametrize(
    ("host", "name"), [("a:80", "a"), ("a", "a"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("", ""), ("[", "")]
)
def test_the_name_of_a_host(host: str, name: str) -> None:
    assert host_name(host) == name


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost", "a.localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "", "localhost.evil.com", "::")))


@pytest.mark.parametrize(
    ("client", "headers", "is_local"),
    [
        (("127.0.0.1", 1), {"host": LOCAL}, True),
        (("::1", 1), {"host": "[::1]:8000"}, True),
        (("127.0.0.1", 1), {"host": LOCAL, "origin": f"http://{LOCAL}"}, True),
        (("127.0.0.1", 1), {"host": LOCAL, "origin": "http://127.0.0.1:3000"}, False),
        (("127.0.0.1", 1), {"host": LOCAL, "origin": "chrome-extension://abc"}, False),
        (("127.0.0.1", 1), {"host": "evil.com:8000"}, False),
        (("127.0.0.1", 1), {"host": LOCAL, "x_forwarded_for": "10.0.0.1"}, False),
        (("127.0.0.1", 1), {"host": LOCAL, "forwarded": "for=10.0.0.1"}, False),
        (("10.0.0.1", 1), {"host": LOCAL}, False),
        (None, {"host": LOCAL}, False),  # a Unix socket: it may be a proxy's
    ],
)
def test_who_is_a_program_of_this_machine(
    client: tuple[str, int] | None, headers: dict[str, str], is_local: bool
) -> None:
    assert is_local_program(cast("Any", {"client": client}), head(**headers)) is is_local
