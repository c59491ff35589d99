"""CORS: which origins' pages may use the server. Off unless origins are named."""

from collections.abc import Sequence

from pyllm.frontend.edge.error_answer import Headers
from pyllm.frontend.http.ignored_fields import IGNORED_FIELDS_HEADER
from pyllm.frontend.requests.request_context import MAX_TOKENS_HEADER

ANY = "*"
PREFLIGHT_SECONDS = 600

# What scripts may read of an answer besides its type and length.
_BUDGETS = [f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")]
_EXPOSED = ", ".join(
    ["x-request-id", "retry-after", IGNORED_FIELDS_HEADER.decode(), MAX_TOKENS_HEADER.decode(), *_BUDGETS]
).encode()


class Cors:
    """The answer's headers for one list of origins; credentials other than a key in a header are never allowed."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._any = ANY in origins
        self._origins = {origin.encode() for origin in origins}

    @property
    def enabled(self) -> bool:
        """Whether any origin is allowed."""
        return bool(self._origins)

    def headers(self, origin: bytes | None) -> Headers:
        """Those that every answer to this origin has."""
        if not self._origins:
            return []
        if self._any:
            return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", _EXPOSED)]
        vary = (b"vary", b"origin")
        if origin not in self._origins or origin is None:
            return [vary]
        return [(b"access-control-allow-origin", origin), vary, (b"access-control-expose-headers", _EXPOSED)]

    def preflight(self) -> Headers:
        """Those that tell a browser what it may send, beside the others."""
        return [
            (b"access-control-allow-methods", b"GET, POST, DELETE"),
            (b"access-control-allow-headers", b"*, authorization"),
            (b"access-control-max-age", b"%d" % PREFLIGHT_SECONDS),
        ]
