"""A stream whose events have ids, and which can go on where an earlier stream broke off.

It generates the answer again from the same seed, and hides the part that was sent before. Does not know which process
sent that part: this one, another one, or one of another server with the same model.
"""

from typing import Self

from pyllm.client.logprobs import chosen
from pyllm.errors import RequestError
from pyllm.frontend.answers.answer_format import AnswerFormat
from pyllm.frontend.answers.event_stream import EventStream
from pyllm.frontend.http.event_ids import LAST_EVENT_ID, ChoicePosition, EventIds, Position
from pyllm.frontend.requests.generation import Generation
from pyllm.frontend.text.detokenizer import TextDelta


class ResumableAnswer(EventStream):
    """Server-sent events, each with an id; `start` is the position of the first one, with every choice's."""

    __slots__ = ("_ids", "_repeats")

    def __init__(self, generation: Generation, answer_format: AnswerFormat, start: Position) -> None:
        super().__init__(generation, answer_format)
        self._ids = EventIds(start)
        self._repeats: dict[int, _Repeat] = {
            choice: _Repeat(position) for choice, position in enumerate(start.choices) if position != ChoicePosition()
        }

    @classmethod
    def from_position(cls, generation: Generation, answer_format: AnswerFormat, position: Position) -> Self:
        """The answer from a position on, after it has set the generation's seed and where to split its text.

        Raises:
            ResumeConflictError: the position is in a stream of another model, prompt or parameters.
            RequestError: the position is of another number of choices, or of another seed.
        """
        choices = position.choices or (ChoicePosition(),) * generation.num_choices
        if len(choices) != generation.num_choices:
            raise RequestError(
                f"the header {LAST_EVENT_ID} belongs to a request with {len(choices)} choices, this one has "
                f"{generation.num_choices}; repeat the same request",
                LAST_EVENT_ID,
            )
        seed = generation.fix_seed(position.seed, is_repeated=bool(position.choices))
        identity = generation.identity()
        if position.identity is not None:
            identity.check_resumes(position.identity)
        generation.split_at([_boundaries(position) for position in choices])
        start = Position(position.request_id, position.created, seed, choices, position.num_end_events, identity)
        return cls(generation, answer_format, start)

    def delta(self, index: int, delta: TextDelta) -> None:
        """Hide text that was sent before; keep the rest for the next write."""
        if (repeat := self._repeats.get(index)) is not None:
            self._repeat(index, repeat, delta)
        else:
            self._gather(index, delta)
        self._flush_soon()

    def _repeat(self, choice: int, repeat: "_Repeat", delta: TextDelta) -> None:
        position = repeat.position
        if position.ended or repeat.num_hidden < position.num_tokens:
            repeat.num_hidden += delta.num_tokens
            if delta.finish_reason is not None:
                del self._repeats[choice]
                if not position.ended:  # It ended earlier than the first time, as by a deadline.
                    self._pending[choice] = TextDelta("", [], delta.finish_reason, delta.stop_reason)
                    delta.finish_reason = None
            elif not position.ended and position.piece is None and repeat.num_hidden == position.num_tokens:
                del self._repeats[choice]
            if delta.logprobs is not None:  # Their tokens' own say where the next text begins.
                delta.logprobs = [dict([own]) if (own := chosen(entries)) else {} for entries in delta.logprobs]
            self._answer_format.text(choice, delta)
            return
        piece = position.piece
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
        events = self._answer_format.text(choice, delta)
        return self._ids.piece(choice, delta.num_tokens, delta.finish_reason is not None, events)

    def _last(self) -> bytes:
        return self._ids.end(self._answer_format.end(self._generation.counts))


class _Repeat:
    """The part of one choice that is generated again, up to its position."""

    __slots__ = ("delta", "num_hidden", "position")

    def __init__(self, position: ChoicePosition) -> None:
        self.position = position
        self.num_hidden = 0
        self.delta: TextDelta | None = None


def _boundaries(position: ChoicePosition) -> list[int]:
    """The token counts where deltas must be split, to hide all up to the position and no more."""
    if position.ended:
        return []
    boundaries = [position.num_tokens] if position.num_tokens else []
    if position.piece is not None and not position.piece.ends and position.piece.num_tokens:
        boundaries.append(position.num_tokens + position.piece.num_tokens)
    return boundaries
