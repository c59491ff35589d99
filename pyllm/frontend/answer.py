"""The two bodies that an answer can have: a stream of events, or one object that is the sum of the same text.

Neither knows which route it answers; a form has that route's JSON.
"""

import asyncio
from typing import Protocol

import msgspec
from msgspec import Struct

from pyllm.errors import PyllmError
from pyllm.frontend.detokenizer import TextDelta
from pyllm.frontend.failure import Failure, describe, failure_headers
from pyllm.frontend.generation import Generation, TokenCounts
from pyllm.frontend.logprobs import LogprobEntries, extended
from pyllm.frontend.stream import Channel, PushedResponse

_encode = msgspec.json.Encoder().encode


class Form(Protocol):
    """One route's JSON, of one answer."""

    def text(self, choice: int, delta: TextDelta) -> bytes:
        """The events of a choice's new text; none where there is nothing to show yet."""

    def around(self, choice: int) -> tuple[bytes, bytes] | None:
        """What surrounds text, as JSON, in the event of a choice that goes on; None where that is not all of it."""

    def end(self, counts: TokenCounts) -> bytes:
        """The events after all choices."""

    def failed(self, failure: Failure) -> bytes:
        """The events that end a stream with an error."""

    def whole(self, choices: list[TextDelta], prompts: list[list[LogprobEntries]], counts: TokenCounts) -> Struct:
        """The answer that is not streamed. `prompts` has, for each choice, the log-probabilities of its prompt."""

    def error(self, failure: Failure) -> Struct:
        """The answer where nothing was sent before."""


def respond(generation: Generation, form: Form, streamed: bool) -> PushedResponse:
    """The response that runs a generation, in the body that was asked for."""
    return PushedResponse(StreamedAnswer(generation, form) if streamed else WholeAnswer(generation, form))


class StreamedAnswer:
    """Server-sent events, written as text comes; headers go out with the first, so that an early error has a status.

    While the reader is slow, text merges per choice, so that at most the answer itself is held. With several choices
    what comes in one turn of the event loop is written at once.
    """

    __slots__ = (
        "_around",
        "_channel",
        "_failure",
        "_flush_scheduled",
        "_form",
        "_gathers",
        "_generation",
        "_over",
        "_pending",
    )

    def __init__(self, generation: Generation, form: Form) -> None:
        self._generation = generation
        self._form = form
        self._channel: Channel
        self._pending: dict[int, TextDelta] = {}
        self._gathers = generation.num_choices > 1
        self._around: tuple[bytes, bytes] | None = None  # the only choice's text, once its first event is out
        self._flush_scheduled = False
        self._failure: PyllmError | None = None
        self._over = False

    def begin(self, channel: Channel) -> None:
        """Submit the prompts."""
        self._channel = channel
        self._generation.start(self)

    def drained(self) -> None:
        """Write what has gathered meanwhile."""
        self._flush()

    def end(self) -> None:
        """Abort what still runs."""
        self._over = True
        self._generation.abort()

    def text(self, choice: int, delta: TextDelta) -> None:
        """Write new text, or keep it for the next write."""
        channel = self._channel
        around = self._around
        if around is not None and delta.finish_reason is None and delta.logprobs is None and not channel.blocked:
            if delta.text:
                channel.write(around[0] + _encode(delta.text) + around[1])
            return
        if not self._gathers and not channel.blocked:
            self._write(self._form.text(choice, delta))
            self._around = self._form.around(choice)
            return
        if (pending := self._pending.get(choice)) is not None:
            pending.merge(delta)
        else:
            self._pending[choice] = delta
        if not channel.blocked and not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def prompt_logprobs(self, choice: int, logprobs: list[LogprobEntries]) -> None:
        """Never asked for in a stream."""

    def error(self, error: PyllmError) -> None:
        """End the stream with an error: a status if nothing was written yet, else an event."""
        self._failure = error
        if not self._channel.blocked:
            self._flush()

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._channel.blocked or self._over:
            return
        events = b"".join([self._form.text(choice, delta) for choice, delta in self._pending.items()])
        self._pending.clear()
        self._write(events)

    def _write(self, events: bytes) -> None:
        channel = self._channel
        self._over = self._generation.finished
        if self._failure is not None:
            if not channel.started and not events:
                _send_error(channel, self._form, self._failure)
                return
            events += self._form.failed(describe(self._failure))
        elif self._over:
            events += self._form.end(self._generation.counts)
        elif not events:
            return
        if not channel.started:
            channel.start(200, b"text/event-stream; charset=utf-8", (b"cache-control", b"no-cache"))
        if self._over:
            channel.finish(events)
        else:
            channel.write(events)


class WholeAnswer:
    """One JSON object, once everything has come."""

    def __init__(self, generation: Generation, form: Form) -> None:
        self._generation = generation
        self._form = form
        self._channel: Channel
        self._choices = [TextDelta("", []) for _ in range(generation.num_choices)]
        self._pieces: list[list[str]] = [[] for _ in range(generation.num_choices)]
        self._prompt_logprobs: list[list[LogprobEntries]] = [[] for _ in range(generation.num_choices)]

    def begin(self, channel: Channel) -> None:
        """Submit the prompts."""
        self._channel = channel
        self._generation.start(self)

    def drained(self) -> None:
        """The whole answer is one write; nothing is left to do."""

    def end(self) -> None:
        """Abort what still runs."""
        self._generation.abort()

    def text(self, choice: int, delta: TextDelta) -> None:
        """Add new text; after the last, send everything."""
        self._pieces[choice].append(delta.text)
        delta.logprobs = extended(self._choices[choice].logprobs, delta.logprobs)
        tokens = self._choices[choice].tokens
        tokens.extend(delta.tokens)
        delta.tokens = tokens
        self._choices[choice] = delta
        if delta.finish_reason is not None:
            delta.text = "".join(self._pieces[choice])
            if self._generation.finished:
                whole = self._form.whole(self._choices, self._prompt_logprobs, self._generation.counts)
                _send_json(self._channel, 200, whole)

    def prompt_logprobs(self, choice: int, logprobs: list[LogprobEntries]) -> None:
        """Add those of a choice's prompt."""
        self._prompt_logprobs[choice].extend(logprobs)

    def error(self, error: PyllmError) -> None:
        """Answer with an error."""
        _send_error(self._channel, self._form, error)


def _send_error(channel: Channel, form: Form, error: PyllmError) -> None:
    failure = describe(error)
    _send_json(channel, failure.status, form.error(failure), *failure_headers(failure))


def _send_json(channel: Channel, status: int, answer: Struct, *headers: tuple[bytes, bytes]) -> None:
    body = _encode(answer)
    channel.start(status, b"application/json", (b"content-length", b"%d" % len(body)), *headers)
    channel.finish(body)
