"""CORS: which origins' pages may use the server. Off unless origins are named."""

from collections.abc import Sequence

from pyllm.frontend.edge.error_answer import Headers
from pyllm.frontend.http.ignored_fields import IGNORED_FIELDS_HEADER
from pyllm.frontend.requests.request_context import ADJUSTED_MESSAGES_HEADER, MAX_TOKENS_HEADER

ANY = "*"
METHODS = b"GET, POST, PATCH, DELETE"
PREFLIGHT_SECONDS = 600

# Headers of an answer that scripts may read besides its type and length.
_BUDGETS = [f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")]
_PYLLM_HEADERS = (IGNORED_FIELDS_HEADER, ADJUSTED_MESSAGES_HEADER, MAX_TOKENS_HEADER)
_EXPOSED = ", ".join(["x-request-id", "retry-after", *(name.decode() for name in _PYLLM_HEADERS), *_BUDGETS]).encode()


class Cors:
    """The answer's headers for one list of origins.

    Cookies and TLS certificates are allowed only where `has_credentials`. `methods` and `headers` are those that pages
    may use; `*` is any.
    """

    def __init__(
        self,
        origins: Sequence[str],
        methods: Sequence[str] = (ANY,),
        headers: Sequence[str] = (ANY,),
        has_credentials: bool = False,
    ) -> None:
        self._any = ANY in origins
        self._origins = {origin.encode() for origin in origins}
        self._methods = METHODS if ANY in methods else ", ".join(methods).encode()
        self._headers = b"" if ANY in headers else ", ".join(headers).encode()
        self._credentials = [(b"access-control-allow-credentials", b"true")] if has_credentials else []

    @property
    def enabled(self) -> bool:
        """Whether any origin is allowed."""
        return bool(self._origins)

    def headers(self, origin: bytes | None) -> Headers:
        """The headers of every answer to this origin."""
        if not self._origins:
            return []
        if self._any:
            return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", _EXPOSED)]
        vary = (b"vary", b"origin")
        if origin not in self._origins or origin is None:
            return [vary]
        exposed = (b"access-control-expose-headers", _EXPOSED)
        return [(b"access-control-allow-origin", origin), vary, exposed, *self._credentials]

    def preflight(self, asked: bytes = b"") -> Headers:
        """Further headers, which tell a browser what it may send; `asked` are the headers that it wants to send."""
        # With credentials, a star is no wildcard but the name of a header.
        any_header = asked if self._credentials else b"*, authorization"
        return [
            (b"access-control-allow-methods", self._methods),
            (b"access-control-allow-headers", self._headers or any_header),
            (b"access-control-max-age", b"%d" % PREFLIGHT_SECONDS),
        ]
