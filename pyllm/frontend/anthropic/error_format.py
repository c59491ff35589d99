"""Errors in the shape that Anthropic's clients expect."""

from typing import Literal

from msgspec import Struct

from pyllm.frontend.http.failure import Failure
from pyllm.frontend.http.routing import ResponseSpec

# `overloaded_error` has the status 529 there; clients of both kinds and proxies know 503.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ErrorDetails(Struct):
    """The error's code, for programs."""

    error_code: str


class AnthropicErrorBody(Struct, omit_defaults=True):
    """An error: its type and its text."""

    type: str
    message: str
    details: ErrorDetails | None = None


class AnthropicError(Struct):
    """The body of every answer that is not a success, and of a stream's last event where it fails."""

    error: AnthropicErrorBody
    request_id: str | None = None
    type: Literal["error"] = "error"


_ERROR = ResponseSpec(AnthropicError)

# The error answers of each route in `/openapi.json`.
ERROR_RESPONSES = dict.fromkeys((400, 401, 403, 404, 408, 413, 415, 429, 500, 503), _ERROR)


def error_response(failure: Failure, request_id: str = "") -> AnthropicError:
    """The body of an error."""
    kind = _TYPES.get(failure.status) or ("invalid_request_error" if failure.status < 500 else "api_error")
    # Programs look for these two: the text tells them by how much to shorten a prompt, the code to send all of it.
    too_long = f"prompt is too long: {failure.num_tokens} tokens > {failure.limit} maximum"
    text = failure.text if failure.num_tokens is None else too_long
    details = ErrorDetails(failure.code) if failure.code == "thread_unsupported_request" else None
    return AnthropicError(AnthropicErrorBody(kind, text, details), request_id or None)
