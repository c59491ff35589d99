"""The request headers that the server reads, checked for their syntax only."""

import math
import re
from collections.abc import Iterable
from typing import Self

from pyllm.errors import RequestError
from pyllm.frontend.observability.trace_context import TraceContext, parse_trace_context

TENANT_HEADER = "x-llm-d-inference-fairness-id"
TIMEOUT_HEADER = "x-request-timeout"
SESSION_HEADER = "x-session-id"  # vllm-router's
RANK_HEADER = "x-data-parallel-rank"  # of vLLM's server
MAX_TENANT_CHARACTERS = 256
MAX_REQUEST_ID_CHARACTERS = 128

_WANTED = frozenset({
    b"accept",
    b"accept-language",
    b"access-control-request-headers",
    b"access-control-request-method",
    b"authorization",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"forwarded",
    b"host",
    b"idempotency-key",
    b"last-event-id",
    b"origin",
    b"sec-fetch-mode",
    b"sec-fetch-site",
    b"traceparent",
    b"tracestate",
    b"x-api-key",
    b"via",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
    b"x-real-ip",
    b"x-request-id",
    TENANT_HEADER.encode(),
    TIMEOUT_HEADER.encode(),
    SESSION_HEADER.encode(),
    RANK_HEADER.encode(),
})  # fmt: skip
# Headers that a proxy and this server might read differently if they came twice.
_SINGLE = frozenset({b"host", b"origin"})
_OF_PROXIES = (b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip")
# What names, addresses and ports have; source: RFC 3986, 3.2.
_HOST = re.compile(rb"[0-9A-Za-z!$&'()*+,;=\-._~:\[\]@%]*")
_CHARSET = re.compile(r""";\s*charset\s*=\s*["']?([^"';\s]*)""", re.IGNORECASE)
_PRINTABLE = re.compile(r"[!-~]+")
_INDEX = re.compile(r"\d{1,9}", re.ASCII)
_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?|\.\d{1,9}")


class RequestHeaders:
    """The headers that are read here. The first of a repeated header counts; `check_single` refuses some repeats."""

    __slots__ = ("_headers", "_repeated")

    def __init__(self, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._headers: dict[bytes, bytes] = {}
        self._repeated = b""
        for name, value in headers:
            if name not in _WANTED:
                continue
            if name not in self._headers:
                self._headers[name] = value
            elif name in _SINGLE:
                self._repeated = name

    def check_single(self) -> None:
        """Refuse two headers Host or Origin, as RFC 9112 (3.2) and RFC 6454 (7.3) say, and a Host that is no authority.

        Raises:
            RequestError: there are two, or the host has characters that neither a name nor an address has.
        """
        if self._repeated:
            name = self._repeated.decode().title()
            raise RequestError(f"The request has the header {name} more than once.", name.lower())
        if not _HOST.fullmatch(self._headers.get(b"host", b"")):
            raise RequestError("The header Host has characters that no name and no address has.", "host")

    def resumed(self, event: bytes) -> Self:
        """The headers of the same request, without an idempotency key, that goes on after an event."""
        others = {name: value for name, value in self._headers.items() if name != b"idempotency-key"}
        return type(self)({**others, b"last-event-id": event}.items())

    @property
    def request_id(self) -> str | None:
        """The caller's own id, if it can be repeated as it is: short, and without spaces or control characters."""
        name = self._text(b"x-request-id")
        return name if is_request_id(name) else None

    @property
    def key(self) -> bytes | None:
        """The API key, as OpenAI's clients send it or as Anthropic's do."""
        scheme, _, key = self._headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer":
            return key.strip()
        return self._headers.get(b"x-api-key")

    @property
    def tenant(self) -> str:
        """The tenant that a router in front has named; empty where none did.

        Raises:
            RequestError: it cannot be a tenant's name.
        """
        return checked_tenant(self._text(TENANT_HEADER.encode()), TENANT_HEADER)

    @property
    def session(self) -> str:
        """The session that the request belongs to; empty where the header does not name one."""
        return self._text(SESSION_HEADER.encode())

    @property
    def data_parallel_rank(self) -> int | None:
        """The index of the core that must run the request; None where the header names none.

        Raises:
            RequestError: it is no index.
        """
        text = self._text(RANK_HEADER.encode())
        if not text:
            return None
        if not _INDEX.fullmatch(text):
            raise RequestError(f"the header {RANK_HEADER} must be the index of a core, such as 0", RANK_HEADER)
        return int(text)

    @property
    def timeout(self) -> float | None:
        """Seconds that the caller gives the request.

        Raises:
            RequestError: they are no number above 0.
        """
        text = self._text(TIMEOUT_HEADER.encode())
        if not text:
            return None
        seconds = float(text) if _SECONDS.fullmatch(text) else math.nan
        if not seconds > 0:
            raise RequestError(
                f"the header {TIMEOUT_HEADER} must be seconds above 0, such as 30 or 0.5", TIMEOUT_HEADER
            )
        return seconds

    @property
    def trace(self) -> TraceContext | None:
        """The caller's span, if it has one."""
        traceparent = self._text(b"traceparent")
        return parse_trace_context(traceparent, self._text(b"tracestate")) if traceparent else None

    @property
    def origin(self) -> bytes | None:
        """The page that a browser sends the request for."""
        return self._headers.get(b"origin")

    @property
    def host(self) -> str:
        """The name and port that the client has connected to, in small letters; empty where it does not say."""
        return self._text(b"host").lower()

    @property
    def forwarded_host(self) -> str:
        """The `host` that a proxy received; a page of another site cannot make a browser send this header."""
        return self._text(b"x-forwarded-host").lower()

    @property
    def is_forwarded(self) -> bool:
        """Whether a proxy has forwarded the request, and says so."""
        return not self._headers.keys().isdisjoint(_OF_PROXIES)

    @property
    def is_from_own_page(self) -> bool:
        """Whether a browser says that this server's page or no page sends the request; a page cannot forge this."""
        return self._headers.get(b"sec-fetch-site") in (b"same-origin", b"none")

    @property
    def is_from_browser(self) -> bool:
        """Whether a browser sends the request, whatever headers its page has set.

        Over plain HTTP, a GET for a page of the same origin has neither Origin nor Sec-Fetch-Site. But every browser
        sends Accept-Language, and a page can change that and not leave it out. So does Node's `fetch`, beside a
        Sec-Fetch-Mode, which a page cannot write and a browser does not send without Sec-Fetch-Site.
        """
        headers = self._headers
        if b"origin" in headers or b"sec-fetch-site" in headers:
            return True
        return b"accept-language" in headers and b"sec-fetch-mode" not in headers

    @property
    def is_from_application(self) -> bool:
        """Whether the request is for a page inside an application, with a scheme of its own such as app://."""
        origin = self._headers.get(b"origin", b"").lower()
        return b"://" in origin and not origin.startswith((b"http://", b"https://"))

    @property
    def asked_headers(self) -> bytes:
        """The headers that a browser asks to send, in a preflight."""
        return self._headers.get(b"access-control-request-headers", b"")

    @property
    def idempotency_key(self) -> bytes | None:
        """The caller's name for this request and its repeats, as it came."""
        return self._headers.get(b"idempotency-key")

    @property
    def last_event_id(self) -> bytes:
        """The last event that the caller saw of the answer, as it came; empty where it saw none."""
        return self._headers.get(b"last-event-id", b"")

    @property
    def wants_event_ids(self) -> bool:
        """Whether the caller could go on after an event: it says so, or asks for events, or may repeat the request."""
        headers = self._headers
        names_one = b"last-event-id" in headers or b"idempotency-key" in headers
        return names_one or b"text/event-stream" in headers.get(b"accept", b"")

    @property
    def is_preflight(self) -> bool:
        """Whether a browser asks what it may send, if the method is OPTIONS."""
        return b"origin" in self._headers and b"access-control-request-method" in self._headers

    @property
    def content_encoding(self) -> str:
        """The encoding of the body; empty where it is sent as it is."""
        name = self._text(b"content-encoding").lower()
        return "" if name == "identity" else name

    @property
    def charset(self) -> str:
        """The declared charset of the body, in small letters; empty where none is declared."""
        match = _CHARSET.search(self._text(b"content-type"))
        return "" if match is None else match[1].lower()

    @property
    def content_length(self) -> int:
        """Bytes of the body, as announced; 0 where they are not."""
        text = self._headers.get(b"content-length", b"")
        return int(text) if text.isdigit() and len(text) < 20 else 0

    def _text(self, name: bytes) -> str:
        return self._headers.get(name, b"").decode("latin-1").strip()


def is_request_id(text: str) -> bool:
    """Whether a text is an id that can be repeated as it is: short, and without spaces or control characters."""
    return len(text) <= MAX_REQUEST_ID_CHARACTERS and _PRINTABLE.fullmatch(text) is not None


def checked_tenant(name: str, source: str) -> str:
    """The name, if it can be a tenant's.

    Raises:
        RequestError: it is too long, or has characters that are not printable; `source` is its field or header.
    """
    if len(name) > MAX_TENANT_CHARACTERS or not name.isprintable():
        text = f"{source} must be at most {MAX_TENANT_CHARACTERS} printable characters, as it names the tenant"
        raise RequestError(text, source)
    return name
