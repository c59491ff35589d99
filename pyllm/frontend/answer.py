"""The two bodies that an answer can have: a stream of events, or one object that is the sum of the same text.

Neither knows which route it answers; a form has that route's JSON.
"""

import asyncio

import msgspec

from pyllm.errors import PyllmError, RequestError
from pyllm.frontend.detokenizer import TextDelta
from pyllm.frontend.event_ids import LAST_EVENT_ID, MAX_CHOICES
from pyllm.frontend.failure import describe
from pyllm.frontend.form import Form, send_error, send_json, start_events
from pyllm.frontend.generation import Generation
from pyllm.frontend.keep_alive import COMMENT, SILENT_SWEEPS
from pyllm.frontend.logprobs import LogprobEntries, extended
from pyllm.frontend.request_context import RequestContext
from pyllm.frontend.resumable import ResumableAnswer
from pyllm.frontend.stream import Answer, Channel, PushedResponse

_encode = msgspec.json.Encoder().encode


def respond(generation: Generation, form: Form, streamed: bool, context: RequestContext) -> PushedResponse:
    """The response that runs a generation, in the body that was asked for.

    Raises:
        RequestError: the request resumes a stream that this one cannot be.
    """
    return PushedResponse(_answer(generation, form, streamed, context))


def _answer(generation: Generation, form: Form, streamed: bool, context: RequestContext) -> Answer:
    position = context.position
    if streamed and position is not None and generation.num_choices <= MAX_CHOICES:
        return ResumableAnswer(generation, form, position)
    if position is not None:
        if position.places:
            text = f"the header {LAST_EVENT_ID} resumes streams of at most {MAX_CHOICES} choices; leave it out"
            raise RequestError(text, LAST_EVENT_ID)
        generation.fix_seed(position.seed)
    return StreamedAnswer(generation, form) if streamed else WholeAnswer(generation, form)


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
        self._generation.keep_alive.add(self)

    def drained(self) -> None:
        """Write what has gathered meanwhile."""
        self._flush()

    def end(self) -> None:
        """Abort what still runs."""
        self._over = True
        self._generation.keep_alive.remove(self)
        self._generation.abort()

    def tick(self) -> bool:
        """Whether nothing was sent for so long that the reader is to get a comment."""
        return self._channel.tick() >= SILENT_SWEEPS

    def send_comment(self) -> None:
        """Send a comment, which clients ignore."""
        start_events(self._channel)
        self._channel.write(COMMENT)

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
                send_error(channel, self._form, self._failure)
                return
            events += self._form.failed(describe(self._failure))
        elif self._over:
            events += self._form.end(self._generation.counts)
        elif not events:
            return
        start_events(channel)
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
                send_json(self._channel, 200, whole)

    def prompt_logprobs(self, choice: int, logprobs: list[LogprobEntries]) -> None:
        """Add those of a choice's prompt."""
        self._prompt_logprobs[choice].extend(logprobs)

    def error(self, error: PyllmError) -> None:
        """Answer with an error."""
        send_error(self._channel, self._form, error)
