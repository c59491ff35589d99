"""A stream whose events have ids, and which may begin where another one broke off.

It is generated anew from the same seed; what was sent before goes through the same text machines, and is not shown.
"""

from pyllm.errors import RequestError
from pyllm.frontend.detokenizer import TextDelta
from pyllm.frontend.event_ids import LAST_EVENT_ID, EventIds, Place, Position
from pyllm.frontend.event_stream import EventStream
from pyllm.frontend.form import Form
from pyllm.frontend.generation import Generation


class ResumableAnswer(EventStream):
    """Server-sent events from a position on, each with an id.

    Raises:
        RequestError: the position is of another number of choices, or of another seed.
    """

    __slots__ = ("_events", "_ids", "_repeats")

    def __init__(self, generation: Generation, form: Form, position: Position) -> None:
        super().__init__(generation, form)
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
        self._ids = EventIds(start)
        self._repeats: dict[int, _Repeat] = {
            choice: _Repeat(place) for choice, place in enumerate(places) if place != Place()
        }
        self._events = b""  # of repeated pieces, which are complete and must not merge with what follows

    def text(self, choice: int, delta: TextDelta) -> None:
        """Hide text that was sent before; keep the rest for the next write."""
        if (repeat := self._repeats.get(choice)) is not None:
            self._repeat(choice, repeat, delta)
        else:
            self._gather(choice, delta)
        self._flush_soon()

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

    def _last(self) -> bytes:
        return self._ids.end(self._form.end(self._generation.counts))

    def _take(self) -> bytes:
        events, self._events = self._events, b""
        return events + super()._take()


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
