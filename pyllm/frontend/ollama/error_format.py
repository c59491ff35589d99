"""Errors in the shape that Ollama's clients expect."""

from msgspec import Struct

from pyllm.frontend.http.failure import Failure
from pyllm.frontend.http.routing import ResponseSpec

# The path that all routes of this API are below.
PREFIX = "/api"


class OllamaError(Struct):
    """The body of every answer that is not a success, and the last line of a stream that fails."""

    error: str


_ERROR = ResponseSpec(OllamaError)

# The error answers of each route in `/openapi.json`: of a route with a body, and of one without.
ERROR_RESPONSES = dict.fromkeys((400, 401, 403, 404, 408, 413, 415, 429, 500, 503), _ERROR)
LOOKUP_ERROR_RESPONSES = dict.fromkeys((401, 404, 429, 500, 503), _ERROR)


def error_response(failure: Failure) -> OllamaError:
    """The body of an error."""
    return OllamaError(failure.text)
