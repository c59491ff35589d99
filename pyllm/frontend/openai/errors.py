"""Errors in the shape that OpenAI's clients expect."""

from litestar.openapi.datastructures import ResponseSpec

from pyllm.frontend.failure import Failure
from pyllm.frontend.openai.protocol import ErrorBody, ErrorResponse

# What `/openapi.json` says that a route may answer besides its own.
ERROR_RESPONSES = {
    status: ResponseSpec(ErrorResponse, generate_examples=False)
    for status in (400, 401, 404, 408, 413, 415, 422, 429, 500, 503)
}


def error_response(failure: Failure) -> ErrorResponse:
    """The body."""
    kind = failure.kind or ("invalid_request_error" if failure.status < 500 else "server_error")
    return ErrorResponse(ErrorBody(failure.text, kind, failure.parameter, failure.code))
