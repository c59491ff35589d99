"""Renders an error as an answer: headers, and a body in the shape of the path's API. Sends nothing."""

import msgspec
from msgspec import Struct

from pyllm.frontend.anthropic import error_format as anthropic
from pyllm.frontend.http.failure import Failure, failure_headers
from pyllm.frontend.ollama import error_format as ollama
from pyllm.frontend.openai import error_format as openai

Headers = list[tuple[bytes, bytes]]

_encode = msgspec.json.Encoder().encode


def render_error(path: str, failure: Failure, request_id: str) -> tuple[Headers, bytes]:
    """The headers beside the body's type and length, and the body, which is JSON."""
    return failure_headers(failure), _encode(_body(path, failure, request_id))


def is_anthropics(path: str) -> bool:
    """Whether a path is one of Anthropic's API."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def _body(path: str, failure: Failure, request_id: str) -> Struct:
    if is_anthropics(path):
        return anthropic.error_response(failure, request_id)
    if path == ollama.PREFIX or path.startswith(f"{ollama.PREFIX}/"):
        return ollama.error_response(failure)
    return openai.error_response(failure)
