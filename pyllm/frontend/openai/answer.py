"""The two bodies that an answer can have: a stream of events, or one object that is the sum of the same text.

Neither knows which route it answers; a format has that route's JSON.
"""

import asyncio
from typing import Protocol

import msgspec
from msgspec import UNSET, Struct

from pyllm.errors import PyllmError
from pyllm.frontend.detokenizer import TextDelta
from pyllm.frontend.logprobs import LogprobEntries, extended
from pyllm.frontend.openai.errors import describe
from pyllm.frontend.openai.generation import Generation
from pyllm.frontend.openai.protocol import ChatChunk, Completion, Usage
from pyllm.frontend.stream import Channel, PushedResponse

_TEXT = "\0"  # Stands for the text in a chunk that is encoded once.
_DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


class Format(Protocol):
    """One route's JSON. `chunk` is what all chunks of its stream share; with a usage of None, one comes at the end."""

    @property
    def chunk(self) -> Completion | ChatChunk: ...

    def first(self, choice: int) -> Struct | None:
        """What a choice has before its first text, if anything."""

    def piece(self, choice: int, delta: TextDelta) -> Struct:
        """A choice with new text."""

    def last(self, choice: int, delta: TextDelta) -> Struct:
        """A choice with its finish reason, and the text that comes with its end."""

    def whole(self, choices: list[TextDelta], prompts: list[list[LogprobEntries]], usage: Usage) -> Struct:
        """The answer that is not streamed. `prompts` has, for each choice, the log-probabilities of its prompt."""


def respond(generation: Generation, form: Format, streamed: bool) -> PushedResponse:
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
        "_events",
        "_failure",
        "_flush_scheduled",
        "_gathers",
        "_generation",
        "_over",
        "_pending",
    )

    def __init__(self, generation: Generation, form: Format) -> None:
        self._generation = generation
        self._events = _Events(form)
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
            self._write(self._events.text(choice, delta))
            self._around = self._events.around(choice)
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
        events = b"".join([self._events.text(choice, delta) for choice, delta in self._pending.items()])
        self._pending.clear()
        self._write(events)

    def _write(self, events: bytes) -> None:
        channel = self._channel
        self._over = self._generation.finished
        if self._failure is not None:
            if not channel.started and not events:
                _send_error(channel, self._failure)
                return
            events += _event(describe(self._failure)[1]) + _DONE
        elif self._over:
            events += self._events.usage(self._generation.usage) + _DONE
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
        self._choices[choice] = delta
        if delta.finish_reason is not None:
            delta.text = "".join(self._pieces[choice])
            if self._generation.finished:
                whole = self._form.whole(self._choices, self._prompt_logprobs, self._generation.usage)
                _send_json(self._channel, 200, whole)

    def prompt_logprobs(self, choice: int, logprobs: list[LogprobEntries]) -> None:
        """Add those of a choice's prompt."""
        self._prompt_logprobs[choice].extend(logprobs)

    def error(self, error: PyllmError) -> None:
        """Answer with an error."""
        _send_error(self._channel, error)


class _Events:
    """One stream's events. What surrounds the text of a choice is encoded once, so that a token costs its text only."""

    def __init__(self, form: Format) -> None:
        self._form = form
        self._around: dict[int, tuple[bytes, bytes]] = {}
        self._greeted: set[int] = set()

    def text(self, choice: int, delta: TextDelta) -> bytes:
        """What a choice's new text looks like on the wire; nothing if there is none to show yet."""
        if delta.finish_reason is not None:
            events = self._chunk(self._form.last(choice, delta))
        elif delta.logprobs:
            events = self._chunk(self._form.piece(choice, delta))
        elif delta.text:
            events = self._piece(choice, delta.text)
        else:
            return b""
        if choice in self._greeted:
            return events
        self._greeted.add(choice)
        first = self._form.first(choice)
        return events if first is None else self._chunk(first) + events

    def around(self, choice: int) -> tuple[bytes, bytes] | None:
        """What surrounds a choice's new text; None as long as it has had none."""
        return self._around.get(choice)

    def usage(self, usage: Usage) -> bytes:
        """The event after all choices; nothing unless the client asked for it."""
        chunk = self._form.chunk
        return b"" if chunk.usage is UNSET else _event(msgspec.structs.replace(chunk, usage=usage))

    def _piece(self, choice: int, text: str) -> bytes:
        around = self._around.get(choice)
        if around is None:
            before, _, after = self._chunk(self._form.piece(choice, TextDelta(_TEXT, []))).rpartition(_encode(_TEXT))
            around = self._around[choice] = before, after
        return around[0] + _encode(text) + around[1]

    def _chunk(self, choice: Struct) -> bytes:
        return _event(msgspec.structs.replace(self._form.chunk, choices=[choice]))


def _event(body: Struct) -> bytes:
    return b"data: %b\n\n" % _encode(body)


def _send_error(channel: Channel, error: PyllmError) -> None:
    status, body = describe(error)
    _send_json(channel, status, body)


def _send_json(channel: Channel, status: int, answer: Struct) -> None:
    body = _encode(answer)
    channel.start(status, b"application/json", (b"content-length", b"%d" % len(body)))
    channel.finish(body)
