"""Each kind of error has one status and OpenAI's shape, and says nothing of the server's insides."""

import logging

import msgspec
import pytest
from litestar.exceptions import MethodNotAllowedException, NotFoundException

from pyllm.errors import ConfigError, EngineDeadError, ProtocolError, PyllmError, RequestError, RequestTooLargeError
from pyllm.frontend.failure import Failure, MediaTypeError, UnknownModelError, decoding_error, describe
from pyllm.frontend.openai.errors import error_response
from pyllm.frontend.openai.protocol import ChatRequest, ErrorBody


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (RequestError("x", "n"), 400, "invalid_request_error", None),
        (RequestTooLargeError("x"), 400, "invalid_request_error", "context_length_exceeded"),
        (UnknownModelError("a", "b"), 404, "invalid_request_error", "model_not_found"),
        (MediaTypeError("x"), 415, "invalid_request_error", "unsupported_media_type"),
        (NotFoundException(), 404, "invalid_request_error", None),
        (MethodNotAllowedException(), 405, "invalid_request_error", None),
        (PyllmError("x"), 500, "server_error", None),
        (EngineDeadError("x"), 503, "server_error", "engine_unavailable"),
        (ProtocolError("x"), 500, "server_error", None),
        (ConfigError("x"), 500, "server_error", None),
    ],
)
def test_status_and_type(error: Exception, status: int, kind: str, code: str | None) -> None:
    failure = describe(error)
    body = error_response(failure).error
    assert (failure.status, body.type, body.code) == (status, kind, code)


def test_the_field_at_fault_is_named() -> None:
    assert error_response(describe(RequestError("n is wrong", "n"))).error == ErrorBody(
        "n is wrong", "invalid_request_error", "n"
    )


def test_an_unforeseen_error_is_for_the_log_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        failure = describe(ZeroDivisionError("secret /path"))
    assert failure == Failure(500, "The server failed on this request; its log says why.")
    assert "secret" in caplog.text


@pytest.mark.parametrize(
    ("body", "text", "field"),
    [
        (b"{", "not valid JSON", None),
        (b"[1]", "Expected `object`, got `array`", None),
        (b"{}", "missing required field `messages`", None),
        (b'{"messages": 5}', "messages: Expected `array`", "messages"),
        (
            b'{"messages": [{"role": "user", "content": [{"type": 1}]}]}',
            "Expected `str`",
            "messages[0].content[0].type",
        ),
        (b'{"messages": [], "x": 1}', "x is not a known field", "x"),
        (b'{"messages": [{"role": "user", "x": 1}]}', "is not a known field", "messages[0].x"),
        (b'{"messages": [], "temperature": "\xff"}', "", "temperature"),
        (b'{"messages": [], "user": "\xff"}', "not valid JSON", None),
    ],
)
def test_what_does_not_decode_is_explained(body: bytes, text: str, field: str | None) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)) as caught:
        msgspec.json.decode(body, type=ChatRequest)
    error = decoding_error(caught.value)
    assert text in str(error)
    assert error.parameter == field


def test_deep_nesting_is_a_request_error() -> None:
    with pytest.raises(RecursionError) as caught:
        msgspec.json.decode(b'{"messages": [], "documents": [{"a": ' + b"[" * 100_000, type=ChatRequest)
    assert "nested too deeply" in str(decoding_error(caught.value))
