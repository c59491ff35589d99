"""The one place that knows in which shape the errors of a path are: whoever refuses a request asks here."""

import msgspec
from msgspec import Struct

from pyllm.frontend.anthropic import errors as anthropic
from pyllm.frontend.failure import Failure
from pyllm.frontend.openai import errors as openai

Headers = list[tuple[bytes, bytes]]


def error_answer(path: str, failure: Failure, request_id: str = "") -> tuple[Headers, bytes]:
    """The headers and the body that tell of a failure on this path."""
    body = msgspec.json.encode(error_body(path, failure, request_id))
    return [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))], body


def error_body(path: str, failure: Failure, request_id: str = "") -> Struct:
    """The same body as a struct."""
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return anthropic.error_response(failure, request_id)
    return openai.error_response(failure)
