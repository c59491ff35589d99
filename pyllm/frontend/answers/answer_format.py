"""The format of an answer: one route's JSON, and functions that send errors and whole objects. Knows no route."""

from typing import Protocol

import msgspec
from msgspec import Struct

from pyllm.client.logprobs import LogprobEntries
from pyllm.errors import PyllmError
from pyllm.frontend.http.failure import Failure, describe, failure_headers
from pyllm.frontend.http.pushed_response import Channel
from pyllm.frontend.requests.generation import TokenCounts
from pyllm.frontend.text.detokenizer import TextDelta

# The types of streams: server-sent events, and lines that are each an object, which have neither ids nor comments.
EVENTS, LINES = b"text/event-stream; charset=utf-8", b"application/x-ndjson"

_encode = msgspec.json.Encoder().encode


class AnswerFormat(Protocol):
    """One route's JSON, of one answer."""

    def text(self, choice: int, delta: TextDelta) -> bytes:
        """The events of a choice's new text; empty where there is nothing to show yet."""

    def around(self, choice: int) -> tuple[bytes, bytes] | None:
        """The JSON before and after the text in each event of a running choice; None where it differs by event."""

    def end(self, counts: TokenCounts) -> bytes:
        """The events after all choices."""

    def failed(self, failure: Failure) -> bytes:
        """The events that end a stream with an error."""

    def whole(self, choices: list[TextDelta], prompts: list[list[LogprobEntries]], counts: TokenCounts) -> object:
        """The answer that is not streamed. `prompts` has, for each choice, the log-probabilities of its prompt."""

    def error(self, failure: Failure) -> Struct:
        """The whole answer if the request fails before anything was sent."""


def start_events(channel: Channel, media_type: bytes = EVENTS) -> None:
    """Send the head of a stream, unless it is out already."""
    if not channel.started:
        channel.start(200, media_type, (b"cache-control", b"no-cache"))


def send_error(channel: Channel, answer_format: AnswerFormat, error: PyllmError) -> None:
    """Answer with an error's status."""
    failure = describe(error)
    send_failure(channel, failure, answer_format.error(failure))


def send_failure(channel: Channel, failure: Failure, body: Struct) -> None:
    """Answer with a failure: its status, the headers for that status, and a body in the route's shape."""
    send_json(channel, failure.status, body, *failure_headers(failure))


def send_json(channel: Channel, status: int, answer: object, *headers: tuple[bytes, bytes]) -> None:
    """Answer with one object."""
    send_body(channel, status, _encode(answer), *headers)


def send_body(channel: Channel, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    """Answer with one object, as JSON."""
    channel.start(status, b"application/json", (b"content-length", b"%d" % len(body)), *headers)
    channel.finish(body)
