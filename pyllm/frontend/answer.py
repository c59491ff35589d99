"""The body that an answer has: a stream of events, with ids or without, or one object that is the sum of the same text.

None knows which route it answers; a form has that route's JSON.
"""

import msgspec

from pyllm.errors import PyllmError, RequestError
from pyllm.frontend.detokenizer import TextDelta
from pyllm.frontend.event_ids import LAST_EVENT_ID, MAX_CHOICES
from pyllm.frontend.event_stream import EventStream
from pyllm.frontend.form import Form, send_error, send_json
from pyllm.frontend.generation import Generation
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


class StreamedAnswer(EventStream):
    """Server-sent events, written as text comes. With several choices what comes in one turn is written at once."""

    __slots__ = ("_around", "_gathers")

    def __init__(self, generation: Generation, form: Form) -> None:
        super().__init__(generation, form)
        self._gathers = generation.num_choices > 1
        self._around: tuple[bytes, bytes] | None = None  # the only choice's text, once its first event is out

    def text(self, choice: int, delta: TextDelta) -> None:
        """Write new text, or keep it for the next write."""
        channel = self._channel
        around = self._around
        if around is not None and delta.finish_reason is None and delta.logprobs is None and not channel.blocked:
            if delta.text:
                channel.write(_encode(delta.text), around[0], around[1])
            return
        if not self._gathers and not channel.blocked:
            self._write(self._form.text(choice, delta))
            self._around = self._form.around(choice)
            return
        self._gather(choice, delta)
        self._flush_soon()

    def _show(self, choice: int, delta: TextDelta) -> bytes:
        return self._form.text(choice, delta)

    def _last(self) -> bytes:
        return self._form.end(self._generation.counts)


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
