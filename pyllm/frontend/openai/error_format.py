"""Errors in the shape that OpenAI's clients expect."""

from pyllm.frontend.http.failure import Failure
from pyllm.frontend.http.routing import ResponseSpec
from pyllm.frontend.openai.protocol import ErrorBody, ErrorResponse

_ERROR = ResponseSpec(ErrorResponse)

# The error answers of each route in `/openapi.json`: of a route with a body, and of one without.
ERROR_RESPONSES = dict.fromkeys((400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503), _ERROR)
LOOKUP_ERROR_RESPONSES = dict.fromkeys((401, 404, 429, 500, 503), _ERROR)


def error_response(failure: Failure) -> ErrorResponse:
    """The body of an error."""
    kind = failure.kind or ("invalid_request_error" if failure.status < 500 else "server_error")
    return ErrorResponse(ErrorBody(failure.text, kind, failure.parameter, failure.code))
