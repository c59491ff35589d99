"""A stream whose events have ids, and which may begin where another one broke off.

It is generated anew from the same seed; what was sent before goes through the same text machines, and is not shown.
"""

import asyncio

from pyllm.errors import PyllmError, RequestError
from pyllm.frontend.detokenizer import TextDelta
from pyllm.frontend.event_ids import LAST_EVENT_ID, EventIds, Place, Position
from pyllm.frontend.failure import describe
from pyllm.frontend.form import Form, send_error, start_events
from pyllm.frontend.generation import Generation
from pyllm.frontend.keep_alive import COMMENT, SILENT_SWEEPS
from pyllm.frontend.logprobs import LogprobEntries
from pyllm.frontend.stream import Channel


class ResumableAnswer:
    """Server-sent events from a position on, each with an id.

    While the reader is slow, text merges per choice, as in any stream.

    Raises:
        RequestError: the position is of another number of choices, or of another seed.
    """

    def __init__(self, generation: Generation, form: Form, position: Position) -> None:
        places = position.places or (Place(),) * generation.num_choices
        if len(places) != generation.num_choices:
            raise RequestError(
                f"the header {LAST_EVENT_ID} is of a request with {len(places)} choices, this one has "
                f"{generation.num_choices}; repeat the same request",
                LAST_EVENT_ID,
            )
        seed = generation.fix_seed(position.seed, is_repeated=bool(position.places))
        generation.cut([_cuts(place) for place in places])
        start = Position(position.request_id, position.created, seed, places, position.num_end_events)
        self._generation = generation
        self._form = form
        self._ids = EventIds(start)
        self._channel: Channel
        self._repeats: dict[int, _Repeat] = {
            choice: _Repeat(place) for choice, place in enumerate(places) if place != Place()
        }
        self._events = b""  # of repeated pieces, which are complete and must not merge with what follows
        self._pending: dict[int, TextDelta] = {}
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
        """Whether the reader has heard nothing for so long that it is to get a comment."""
        return self._channel.tick() >= SILENT_SWEEPS

    def send_comment(self) -> None:
        """Send a comment, which clients ignore."""
        start_events(self._channel)
        self._channel.write(COMMENT)

    def text(self, choice: int, delta: TextDelta) -> None:
        """Hide text that was sent before; keep the rest for the next write."""
        if (repeat := self._repeats.get(choice)) is not None:
            self._repeat(choice, repeat, delta)
        elif (pending := self._pending.get(choice)) is not None:
            pending.merge(delta)
        else:
            self._pending[choice] = delta
        if not self._channel.blocked and not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def prompt_logprobs(self, choice: int, logprobs: list[LogprobEntries]) -> None:
        """Never asked for in a stream."""

    def error(self, error: PyllmError) -> None:
        """End the stream with an error: a status if nothing was written yet, else an event."""
        self._failure = error
        self._flush()

    def _repeat(self, choice: int, repeat: "_Repeat", delta: TextDelta) -> None:
        place = repeat.place
        if place.ended or repeat.num_hidden < place.num_tokens:
            repeat.num_hidden += delta.num_tokens
            if delta.finish_reason is not None:
                del self._repeats[choice]
                if not place.ended:  # It ended earlier than the first time, as by a deadline.
                    self._pending[choice] = TextDelta("", [], delta.finish_reason, delta.stop_reason)
                    delta.finish_reason = None
            elif not place.ended and place.piece is None and repeat.num_hidden == place.num_tokens:
                del self._repeats[choice]
            self._form.text(choice, delta)
            return
        piece = place.piece
        assert piece is not None
        if repeat.delta is None:
            repeat.delta = delta
        else:
            repeat.delta.merge(delta)
        whole = repeat.delta
        if whole.finish_reason is not None or (not piece.ends and whole.num_tokens >= piece.num_tokens):
            del self._repeats[choice]
            self._events += self._show(choice, whole)

    def _show(self, choice: int, delta: TextDelta) -> bytes:
        events = self._form.text(choice, delta)
        return self._ids.piece(choice, delta.num_tokens, delta.finish_reason is not None, events)

    def _flush(self) -> None:
        self._flush_scheduled = False
        channel = self._channel
        if channel.blocked or self._over:
            return
        events = self._events + b"".join([self._show(choice, delta) for choice, delta in self._pending.items()])
        self._events = b""
        self._pending.clear()
        self._over = self._generation.finished
        if self._failure is not None:
            if not channel.started and not events:
                send_error(channel, self._form, self._failure)
                return
            events += self._form.failed(describe(self._failure))
        elif self._over:
            events += self._ids.end(self._form.end(self._generation.counts))
        elif not events:
            return
        start_events(channel)
        if self._over:
            channel.finish(events)
        else:
            channel.write(events)


class _Repeat:
    """What is generated again of one choice, up to its place."""

    __slots__ = ("delta", "num_hidden", "place")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.num_hidden = 0
        self.delta: TextDelta | None = None


def _cuts(place: Place) -> list[int]:
    """Where deltas must be split so that everything up to the place, and no more, can be hidden."""
    if place.ended:
        return []
    cuts = [place.num_tokens] if place.num_tokens else []
    if place.piece is not None and not place.piece.ends and place.piece.num_tokens:
        cuts.append(place.num_tokens + place.piece.num_tokens)
    return cuts
