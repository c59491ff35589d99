"""The bodies of answers: a stream of events, resumable or not, or one JSON object that is the sum of the same text.

Knows no route: an answer format has the route's JSON.
"""

from functools import partial

import msgspec

from pyllm.client.logprobs import LogprobEntries, are_packed, extended
from pyllm.errors import PyllmError, RequestError
from pyllm.frontend.answers.answer_format import EVENTS, LINES, AnswerFormat, send_body, send_error, send_json
from pyllm.frontend.answers.event_stream import EventStream
from pyllm.frontend.answers.resumable import ResumableAnswer
from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.http.event_ids import LAST_EVENT_ID, MAX_CHOICES
from pyllm.frontend.http.pushed_response import Answer, Channel, push
from pyllm.frontend.requests.generation import Generation
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.text.detokenizer import TextDelta

_encode = msgspec.json.Encoder().encode


def respond(generation: Generation, answer_format: AnswerFormat, streamed: bool, context: RequestContext) -> ASGIApp:
    """The response that runs a generation, streamed or as a whole.

    Raises:
        RequestError: the request resumes a stream that this one cannot be.
    """
    return partial(push, _answer(generation, answer_format, streamed, context))


def respond_in_lines(generation: Generation, answer_format: AnswerFormat, streamed: bool) -> ASGIApp:
    """The same, with a stream of lines: it cannot be resumed, as lines have no ids."""
    answer = StreamedAnswer(generation, answer_format, LINES) if streamed else WholeAnswer(generation, answer_format)
    return partial(push, answer)


def _answer(generation: Generation, answer_format: AnswerFormat, streamed: bool, context: RequestContext) -> Answer:
    position = context.position
    if streamed and position is not None and generation.num_choices <= MAX_CHOICES:
        return ResumableAnswer.from_position(generation, answer_format, position)
    if position is not None:
        if position.choices:
            text = f"the header {LAST_EVENT_ID} resumes streams of at most {MAX_CHOICES} choices; leave it out"
            raise RequestError(text, LAST_EVENT_ID)
        generation.fix_seed(position.seed)
    return StreamedAnswer(generation, answer_format) if streamed else WholeAnswer(generation, answer_format)


class StreamedAnswer(EventStream):
    """Events, written as text comes. The texts of several choices are one write per event-loop turn."""

    __slots__ = ("_around", "_gathers")

    def __init__(self, generation: Generation, answer_format: AnswerFormat, media_type: bytes = EVENTS) -> None:
        super().__init__(generation, answer_format, media_type)
        self._gathers = generation.num_choices > 1
        # The only choice's text, while each delta of it is written at once, from the first event on.
        self._around: tuple[bytes, bytes] | None = None

    def delta(self, index: int, delta: TextDelta) -> None:
        """Write new text, or keep it for the next write."""
        channel = self._channel
        around = self._around
        if around is not None and delta.finish_reason is None and delta.logprobs is None and not channel.blocked:
            if delta.text:
                channel.write(_encode(delta.text), around[0], around[1])
            return
        waits = channel.blocked or self._is_formatting or self._pending
        if not self._gathers and not waits and not are_packed(delta.logprobs):
            self._write(self._answer_format.text(index, delta))
            self._around = self._answer_format.around(index)
            return
        self._around = None
        self._gather(index, delta)
        self._flush_soon()

    def _show(self, choice: int, delta: TextDelta) -> bytes:
        return self._answer_format.text(choice, delta)

    def _last(self) -> bytes:
        return self._answer_format.end(self._generation.counts)


class WholeAnswer:
    """One JSON object, once everything has come."""

    def __init__(self, generation: Generation, answer_format: AnswerFormat) -> None:
        self._generation = generation
        self._answer_format = answer_format
        self._channel: Channel
        self._choices = [TextDelta("", []) for _ in range(generation.num_choices)]
        self._pieces: list[list[str]] = [[] for _ in range(generation.num_choices)]
        self._prompt_logprobs: list[list[LogprobEntries]] = [[] for _ in range(generation.num_choices)]
        self._over = False

    def begin(self, channel: Channel) -> None:
        """Submit the prompts."""
        self._channel = channel
        self._generation.start(self)

    def drained(self) -> None:
        """The whole answer is one write; nothing is left to do."""

    def end(self) -> None:
        """Abort the generation if it still runs."""
        self._over = True
        self._generation.close()

    def delta(self, index: int, delta: TextDelta) -> None:
        """Add new text; after the last, send everything."""
        self._pieces[index].append(delta.text)
        delta.logprobs = extended(self._choices[index].logprobs, delta.logprobs)
        tokens = self._choices[index].tokens
        tokens.extend(delta.tokens)
        delta.tokens = tokens
        self._choices[index] = delta
        if delta.finish_reason is not None:
            delta.text = "".join(self._pieces[index])
            if self._generation.finished:
                self._send()

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        """Add log-probabilities of a choice's prompt."""
        self._prompt_logprobs[index].extend(logprobs)

    def error(self, error: PyllmError) -> None:
        """Answer with an error."""
        send_error(self._channel, self._answer_format, error)

    def _send(self) -> None:
        whole = partial(self._answer_format.whole, self._choices, self._prompt_logprobs, self._generation.counts)
        if any(map(are_packed, (*self._prompt_logprobs, *(choice.logprobs for choice in self._choices)))):
            self._generation.run_aside(lambda: _encode(whole()), self._send_body)
        else:
            send_json(self._channel, 200, whole())

    def _send_body(self, body: bytes) -> None:
        if body and not self._over:
            send_body(self._channel, 200, body)
