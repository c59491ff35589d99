"""A stream of events: its start and end, its comments, and the text that gathers while the reader is slow.

Does not decide when text is written at once, and knows no event ids.
"""

import asyncio
from abc import ABC, abstractmethod
from functools import partial

from pyllm.client.logprobs import LogprobEntries, are_packed
from pyllm.errors import PyllmError
from pyllm.frontend.answers.answer_format import EVENTS, AnswerFormat, send_error, start_events
from pyllm.frontend.http.failure import describe
from pyllm.frontend.http.keep_alive import COMMENT, SILENT_SWEEPS
from pyllm.frontend.http.pushed_response import Channel
from pyllm.frontend.requests.generation import Generation
from pyllm.frontend.text.detokenizer import TextDelta


class EventStream(ABC):
    """A stream whose headers go out with the first event, so that an early error has a status.

    Waiting text is merged per choice, so that the stream holds at most the answer itself. Text waits for a slow reader,
    and for the thread that makes events of many log-probabilities. Only a stream of server-sent events has comments.
    """

    __slots__ = (
        "_answer_format",
        "_channel",
        "_events",
        "_failure",
        "_flush_scheduled",
        "_generation",
        "_is_formatting",
        "_media_type",
        "_over",
        "_pending",
    )

    def __init__(self, generation: Generation, answer_format: AnswerFormat, media_type: bytes = EVENTS) -> None:
        self._generation = generation
        self._answer_format = answer_format
        self._media_type = media_type
        self._channel: Channel
        self._pending: dict[int, TextDelta] = {}
        self._events = b""  # which are complete, and come before those of the pending text
        self._is_formatting = False  # on a thread
        self._flush_scheduled = False
        self._failure: PyllmError | None = None
        self._over = False

    def begin(self, channel: Channel) -> None:
        """Submit the prompts."""
        self._channel = channel
        self._generation.start(self)
        if self._media_type == EVENTS:
            self._generation.keep_alive.add(self)

    def drained(self) -> None:
        """Write the text that gathered meanwhile."""
        self._flush()

    def end(self) -> None:
        """Abort the generation if it still runs."""
        self._over = True
        self._generation.keep_alive.remove(self)
        self._generation.close()

    def tick(self) -> bool:
        """Whether nothing was sent for so long that the reader is to get a comment."""
        return self._channel.tick() >= SILENT_SWEEPS

    def send_comment(self) -> None:
        """Send a comment, which clients ignore."""
        start_events(self._channel)
        self._channel.write(COMMENT)

    @abstractmethod
    def delta(self, index: int, delta: TextDelta) -> None:
        """Take a choice's new text."""

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        """Ignore log-probabilities of the prompt: no stream asks for them."""
        del index, logprobs

    def error(self, error: PyllmError) -> None:
        """End the stream with an error: a status if nothing was written yet, else an event."""
        self._failure = error
        self._flush()

    @abstractmethod
    def _show(self, choice: int, delta: TextDelta) -> bytes:
        """The events of a choice's text."""

    @abstractmethod
    def _last(self) -> bytes:
        """The events after all choices."""

    def _gather(self, choice: int, delta: TextDelta) -> None:
        if (pending := self._pending.get(choice)) is not None:
            pending.merge(delta)
        else:
            self._pending[choice] = delta

    def _flush_soon(self) -> None:
        """Write the text of this event-loop turn at its end, unless the reader is slow: then `drained` does."""
        if not self._channel.blocked and not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._channel.blocked or self._over or self._is_formatting:
            return
        events, self._events = self._events, b""
        pending, self._pending = self._pending, {}
        if not any(are_packed(delta.logprobs) for delta in pending.values()):
            self._write(events + self._show_all(pending))
            return
        if events:
            start_events(self._channel, self._media_type)
            self._channel.write(events)
        self._is_formatting = True
        self._generation.run_aside(partial(self._show_all, pending), self._shown)

    def _shown(self, events: bytes) -> None:
        self._is_formatting = False
        self._events = events + self._events
        self._flush()

    def _show_all(self, texts: dict[int, TextDelta]) -> bytes:
        return b"".join([self._show(choice, delta) for choice, delta in texts.items()])

    def _write(self, events: bytes) -> None:
        channel = self._channel
        self._over = self._generation.finished
        if self._failure is not None:
            if not channel.started and not events:
                send_error(channel, self._answer_format, self._failure)
                return
            events += self._answer_format.failed(describe(self._failure))
        elif self._over:
            events += self._last()
        elif not events:
            return
        start_events(channel, self._media_type)
        if self._over:
            channel.finish(events)
        else:
            channel.write(events)
