"""An error as an answer: the body in the shape of the path's API, and the headers that go with it. Sends nothing."""

import msgspec

from pyllm.frontend.failure import Failure, failure_headers
from pyllm.frontend.openai.errors import error_response

Headers = list[tuple[bytes, bytes]]

_encode = msgspec.json.Encoder().encode


def error_answer(path: str, failure: Failure) -> tuple[Headers, bytes]:
    """The headers beside the body's type and length, and the body, which is JSON."""
    del path  # All APIs have OpenAI's shape so far.
    return failure_headers(failure), _encode(error_response(failure))
