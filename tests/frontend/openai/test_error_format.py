"""Each kind of error has one status and OpenAI's shape, and says nothing of the server's insides."""

import logging

import httpx
import msgspec
import openai
import pytest

from pyllm.errors import (
    ConfigError,
    DeadlineError,
    EngineDeadError,
    ProtocolError,
    PyllmError,
    RequestError,
    RequestTooLargeError,
)
from pyllm.frontend.http.body_shape import find_ignored
from pyllm.frontend.http.failure import (
    AuthenticationError,
    BodyTooLargeError,
    ClientGoneError,
    Failure,
    MediaTypeError,
    MethodError,
    QueueFullError,
    RateLimitError,
    UnknownModelError,
    UnknownRouteError,
    decoding_error,
    describe,
    failure_headers,
)
from pyllm.frontend.http.ignored_fields import RequestFields
from pyllm.frontend.openai.error_format import error_response
from pyllm.frontend.openai.protocol import ChatRequest, ErrorBody


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (RequestError("x", "n"), 400, "invalid_request_error", None),
        (RequestTooLargeError("x"), 400, "invalid_request_error", "context_length_exceeded"),
        (UnknownModelError("a", ["b"]), 404, "invalid_request_error", "model_not_found"),
        (MediaTypeError("x"), 415, "invalid_request_error", "unsupported_media_type"),
        (UnknownRouteError("no"), 404, "invalid_request_error", None),
        (MethodError(["GET"]), 405, "invalid_request_error", None),
        (BodyTooLargeError("x"), 413, "invalid_request_error", "request_too_large"),
        (ClientGoneError("x"), 400, "invalid_request_error", None),
        (AuthenticationError("x"), 401, "invalid_request_error", "invalid_api_key"),
        (DeadlineError("x"), 408, "invalid_request_error", "request_timeout"),
        (RateLimitError("x", "tokens", 1.0), 429, "tokens", "rate_limit_exceeded"),
        (QueueFullError("x", 1.0), 503, "server_error", "queue_full"),
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


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (RateLimitError("x", "requests", 1.2), [(b"retry-after", b"2")]),
        (RateLimitError("x", "requests", 0.0), [(b"retry-after", b"1")]),
        (RateLimitError("x", "tokens", None), [(b"x-should-retry", b"false")]),
        (PyllmError("x"), [(b"x-should-retry", b"false")]),
        (QueueFullError("x", 3.0), [(b"retry-after", b"3")]),
        (EngineDeadError("x"), [(b"retry-after", b"5")]),
        (AuthenticationError("x"), [(b"www-authenticate", b"Bearer")]),
        (MethodError(["GET"]), [(b"allow", b"GET")]),
        (DeadlineError("x"), [(b"x-should-retry", b"false")]),
        (RequestError("x"), []),
    ],
)
def test_a_status_brings_its_headers(error: Exception, headers: list[tuple[bytes, bytes]]) -> None:
    assert failure_headers(describe(error)) == headers


def test_every_failure_has_its_own_class_in_openais_package() -> None:
    api = openai.OpenAI(api_key="none")
    kinds = {
        400: openai.BadRequestError,
        401: openai.AuthenticationError,
        404: openai.NotFoundError,
        429: openai.RateLimitError,
        500: openai.InternalServerError,
        503: openai.InternalServerError,
    }
    for status, kind in kinds.items():
        body = msgspec.to_builtins(error_response(Failure(status, "text", "n", "code")))
        response = httpx.Response(status, json=body, request=httpx.Request("POST", "http://x"))
        error = api._make_status_error_from_response(response)
        assert type(error) is kind
        assert (error.code, error.param) == ("code", "n")
    api.close()


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


@pytest.mark.parametrize(
    ("body", "field"),
    [(b'{"messages": [], "x": 1}', "x"), (b'{"messages": [{"role": "user", "x": 1}]}', "messages.x")],
)
def test_a_strict_server_names_an_unknown_field_by_its_path(body: bytes, field: str) -> None:
    with pytest.raises(RequestError, match=f"^{field} is not a known field$") as refused:
        find_ignored(body, ChatRequest, RequestFields("refuse"))
    assert refused.value.parameter == field


def test_deep_nesting_is_a_request_error() -> None:
    with pytest.raises(RecursionError) as caught:
        msgspec.json.decode(b'{"messages": [], "documents": [{"a": ' + b"[" * 100_000, type=ChatRequest)
    assert "nested too deeply" in str(decoding_error(caught.value))
