"""The two bodies that an answer can have: a stream of events, or one object that is the sum of the same text.

Neither knows which route it answers; a format turns text into that route's JSON.
"""

import asyncio
from typing import Protocol

import msgspec

from pyllm.errors import PyllmError
from pyllm.frontend.detokenizer import TextDelta
from pyllm.frontend.openai.errors import describe
from pyllm.frontend.openai.generation import Generation
from pyllm.frontend.openai.protocol import Usage
from pyllm.frontend.stream import Channel

TEXT = "\0"  # Stands for the text in a chunk that is encoded once.
_DONE = b"data: [DONE]\n\n"

encode_json = msgspec.json.Encoder().encode


class Format(Protocol):
    """One route's JSON."""

    def first(self, choice: int) -> bytes:
        """Events before a choice's first text; may be empty."""

    def piece(self, choice: int, text: str) -> bytes:
        """The event for new text."""

    def last(self, choice: int, delta: TextDelta) -> bytes:
        """The event that ends a choice, with the text that comes with its end."""

    def usage(self, usage: Usage) -> bytes:
        """The event after all choices; empty unless the client asked for it."""

    def whole(self, choices: list[TextDelta], usage: Usage) -> bytes:
        """The answer that is not streamed."""


def event(body: msgspec.Struct) -> bytes:
    """One server-sent event."""
    return b"data: %b\n\n" % encode_json(body)


def event_around(body: msgspec.Struct) -> tuple[bytes, bytes]:
    """An event in which `TEXT` stands for the text, cut there: what precedes the encoded text, and what follows."""
    before, _, after = event(body).rpartition(encode_json(TEXT))
    return before, after


class StreamedAnswer:
    """Server-sent events, written as text comes; headers go out with the first, so that an early error has a status.

    While the reader is slow, text merges per choice, so that at most the answer itself is held. With several choices
    what comes in one turn of the event loop is written at once.
    """

    def __init__(self, generation: Generation, form: Format) -> None:
        self._generation = generation
        self._form = form
        self._channel: Channel
        self._greeted: set[int] = set()
        self._pending: dict[int, TextDelta] = {}
        self._gathers = generation.num_choices > 1
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
        if not self._gathers and not self._channel.blocked:
            self._write(self._events(choice, delta))
            return
        if (pending := self._pending.get(choice)) is not None:
            pending.merge(delta)
        else:
            self._pending[choice] = delta
        if not self._channel.blocked and not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def error(self, error: PyllmError) -> None:
        """End the stream with an error: a status if nothing was written yet, else an event."""
        self._failure = error
        if not self._channel.blocked:
            self._flush()

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._channel.blocked or self._over:
            return
        events = b"".join([self._events(choice, delta) for choice, delta in self._pending.items()])
        self._pending.clear()
        self._write(events)

    def _events(self, choice: int, delta: TextDelta) -> bytes:
        """What a choice's new text looks like on the wire; nothing if there is none to show yet."""
        if delta.finish_reason is not None:
            events = self._form.last(choice, delta)
        elif delta.text:
            events = self._form.piece(choice, delta.text)
        else:
            return b""
        if choice in self._greeted:
            return events
        self._greeted.add(choice)
        return self._form.first(choice) + events

    def _write(self, events: bytes) -> None:
        channel = self._channel
        self._over = self._generation.finished
        if self._failure is not None:
            if not channel.started and not events:
                send_error(channel, self._failure)
                return
            events += event(describe(self._failure)[1]) + _DONE
        elif self._over:
            events += self._form.usage(self._generation.usage) + _DONE
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

    def __init__(self, generation: Generation, form: Format) -> None:
        self._generation = generation
        self._form = form
        self._channel: Channel
        self._choices = [TextDelta("", []) for _ in range(generation.num_choices)]
        self._pieces: list[list[str]] = [[] for _ in range(generation.num_choices)]

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
        if delta.finish_reason is not None:
            self._choices[choice] = msgspec.structs.replace(delta, text="".join(self._pieces[choice]))
            if self._generation.finished:
                send_json(self._channel, 200, self._form.whole(self._choices, self._generation.usage))

    def error(self, error: PyllmError) -> None:
        """Answer with an error."""
        send_error(self._channel, error)


def send_error(channel: Channel, error: PyllmError) -> None:
    """The whole answer is an error."""
    status, body = describe(error)
    send_json(channel, status, encode_json(body))


def send_json(channel: Channel, status: int, body: bytes) -> None:
    """The whole answer is this JSON."""
    channel.start(status, b"application/json", (b"content-length", b"%d" % len(body)))
    channel.finish(body)
