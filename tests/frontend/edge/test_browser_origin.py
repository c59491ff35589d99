"""Which pages may use a server without keys: its own and those that are named, whatever names DNS gives it."""

import socket
from typing import Any, cast

import pytest

from pyllm.frontend.edge.browser_origin import BrowserOrigin, host_name, is_local_program, is_loopback
from pyllm.frontend.http.failure import ForbiddenError
from pyllm.frontend.requests.request_headers import RequestHeaders


def head(**headers: str) -> RequestHeaders:
    return RequestHeaders([(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()])


def is_refused(check: BrowserOrigin, **headers: str) -> bool:
    try:
        check.check_host(head(**headers))
        check.check_name(head(**headers))
        check.check_page(head(**headers))
    except ForbiddenError:
        return True
    return False


LOCAL = "127.0.0.1:8000"
# What browsers send for a GET of a page to its own origin, by plain HTTP.
BROWSER = {"accept": "*/*", "accept_language": "en-US,en;q=0.9", "user_agent": "Mozilla/5.0 (X11; Linux x86_64)"}
# What Node's `fetch` sends with every request.
NODE = {"accept": "*/*", "accept_language": "*", "sec_fetch_mode": "cors", "user_agent": "node"}


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


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::", "192.168.1.7"])
@pytest.mark.parametrize(
    "headers",
    [
        BROWSER,
        {**BROWSER, "accept_language": "*", "user_agent": "node"},  # what a page may change
        {"accept_language": ""},
        {"sec_fetch_site": "same-origin", "sec_fetch_mode": "cors"},
        {"origin": "http://evil.com:8000"},
        {"origin": "http://evil.com:8000", "x_forwarded_host": "localhost"},
    ],
)
def test_a_page_whose_name_leads_here_gets_no_answer(address: str, headers: dict[str, str]) -> None:
    for host in ("evil.com:8000", "evil.com.:8000", "127.0.0.1.evil.com", "localhost.evil.com"):
        with pytest.raises(ForbiddenError, match="--allowed-hosts"):
            BrowserOrigin((), (), address).check_name(head(host=host, **headers))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"user_agent": "curl/8.5"},
        {"user_agent": "Mozilla/5.0 (Windows NT 10.0) PowerShell/7.4"},
        NODE,
        {"origin": "app://obsidian.md"},
        {"origin": "Capacitor://x"},
    ],
)
def test_programs_use_any_name(headers: dict[str, str]) -> None:
    assert not is_refused(BrowserOrigin((), (), "0.0.0.0"), host="llm.example.com", **headers)


@pytest.mark.parametrize(
    "host",
    [
        *("localhost:8000", "a.localhost", "10.0.0.7:8000", "[fe80::1]:8000", "[::1]", "box.local", "llm.internal"),
        *("gpubox:8000", "llm.example.com", "chat.example.com:8000", socket.gethostname().upper()),
    ],
)
def test_a_server_for_others_has_names_of_its_own(host: str) -> None:
    everywhere = BrowserOrigin(("https://chat.example.com",), (), "0.0.0.0")
    # The address that it listens on may be a name as well.
    named = BrowserOrigin(("https://chat.example.com",), (), "LLM.example.com")
    for headers in (BROWSER, {"origin": f"http://{host}".lower()}):
        assert is_refused(everywhere, host=host, **headers) == (host == "llm.example.com")
        assert not is_refused(named, host=host, **headers)


@pytest.mark.parametrize(
    ("host", "is_taken"),
    [
        *(("llm.example.com:443", True), ("127.0.0.1:8000", True), ("10.0.0.7", True), ("[::1]:8000", True)),
        *(("localhost:8000", True), ("a.localhost", True)),
        *(("evil.com", False), ("127.0.0.1.evil.com", False), ("localhost.evil.com", False)),
        *(("gpubox", False), ("box.local", False), ("", False)),
    ],
)
def test_names_that_no_dns_gives_need_no_flag_beside_those_that_are_named(host: str, is_taken: bool) -> None:
    """A check of health or Prometheus asks by address; an attacker's DNS has no part in it."""
    named = BrowserOrigin((), ("llm.example.com",), "0.0.0.0")
    for headers in ({}, BROWSER):
        assert is_refused(named, host=host, **headers) != is_taken


def test_a_name_without_a_dot_is_not_enough_on_loopback() -> None:
    assert is_refused(BrowserOrigin((), (), "127.0.0.1"), host="intranet:8000", **BROWSER)
    assert is_refused(BrowserOrigin((), (), "0.0.0.0"), host="", **BROWSER)


@pytest.mark.parametrize(
    ("check", "host"),
    [
        (BrowserOrigin((), (), ""), "llm.example.com"),  # a Unix socket, or TLS
        (BrowserOrigin(("*",), (), "0.0.0.0"), "llm.example.com"),
        (BrowserOrigin((), ("llm.example.com",), "0.0.0.0"), "llm.example.com"),
    ],
)
def test_where_no_name_can_harm_or_it_is_named_all_browsers_may(check: BrowserOrigin, host: str) -> None:
    assert not is_refused(check, host=host, **BROWSER)


def test_a_page_that_is_named_may_use_any_name() -> None:
    named = BrowserOrigin(("https://chat.example.com",), (), "0.0.0.0")
    assert not is_refused(named, host="llm.example.org", origin="https://chat.example.com")


def test_hosts_that_are_named_are_all_that_there_are() -> None:
    named = BrowserOrigin((), ("LLM.example.com",), "127.0.0.1")
    assert not is_refused(named, host="llm.example.com:8000")
    assert not is_refused(named, host="llm.example.com", origin="http://llm.example.com")
    for host in ("gpubox", "", "llm.example.com.evil.com", "evil.com"):
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
