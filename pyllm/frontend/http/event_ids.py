"""Ids of server-sent events: an id names the request, its seed, and the part of each choice that was sent so far.

A client that repeats its request with the last id that it saw gets the rest, from any server with the same model: the
id needs no record. Knows neither HTTP nor event contents.
"""

import re
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec

from pyllm.errors import RequestError
from pyllm.frontend.http.failure import ResumeConflictError
from pyllm.parameters.sampling_params import SamplingParams

LAST_EVENT_ID = "Last-Event-ID"
MAX_ID_CHARACTERS = 4096
# An id names every choice, so streams of more choices have none.
MAX_CHOICES = 128

_ID = re.compile(
    r"([!-~]{1,256})\.([0-9a-f]{1,10})\.([0-9a-f]{1,16})\.(?:([0-9a-f]{12})-([0-9a-f]{12}))?\.([0-9a-z,+-]*)"
)
_CHOICE = re.compile(r"(\d{1,8})(f?)(?:\+(\d{1,8})(f?)-(\d{1,4}))?")
_END = re.compile(r"e(\d{1,2})")


class Piece(msgspec.Struct, frozen=True):
    """A choice's next tokens, and its end if `ends`, as several events of which `num_events` were sent."""

    num_tokens: int
    ends: bool
    num_events: int


class ChoicePosition(msgspec.Struct, frozen=True):
    """The sent part of one choice: `num_tokens`, its end if `ended`, and perhaps a part of the next piece."""

    num_tokens: int = 0
    ended: bool = False
    piece: Piece | None = None


class StreamIdentity(msgspec.Struct, frozen=True):
    """Two short hashes of everything that a stream's tokens depend on besides its seed.

    `model` hashes the core's fingerprint (`Ready` in `wire/messages.py`) and the adapter's key, `content` the prompts'
    token ids and the parameters, which already reflect the chat template, the tokenizer and the server's defaults.
    """

    model: str
    content: str

    @classmethod
    def of(
        cls, fingerprint: str, prompts: Iterable[Sequence[int]], params: SamplingParams, adapter: str = ""
    ) -> "StreamIdentity":
        """The identity of a request to a core; the seed of `params` is left out."""
        # The text leaves out defaults, so that a version with one more parameter gives the same hash.
        content = blake2b(repr(msgspec.structs.replace(params, seed=None)).encode(), digest_size=6)
        for prompt in prompts:
            content.update(len(prompt).to_bytes(4, "little") + array("i", prompt).tobytes())
        return cls(model_hash(fingerprint, adapter), content.hexdigest())

    def check_resumes(self, earlier: "StreamIdentity") -> None:
        """Check that this stream can go on where an earlier one broke off.

        Raises:
            ResumeConflictError: it has another model, or another prompt or parameters.
        """
        if self.model != earlier.model:
            raise ResumeConflictError(
                f"the header {LAST_EVENT_ID} is of a stream of the model {earlier.model}, and this server has "
                f"{self.model}: its weights, adapter, dtype, quantization, instruction set or number of ranks differ, "
                "and so would its tokens; repeat the request without the header",
                LAST_EVENT_ID,
            )
        if self.content != earlier.content:
            raise ResumeConflictError(
                f"the header {LAST_EVENT_ID} is of a stream with another prompt or other parameters: the body, or the "
                "server's chat template, tokenizer or defaults differ; repeat the same request or leave the header out",
                LAST_EVENT_ID,
            )


class Position(msgspec.Struct, frozen=True):
    """A point in an answer's stream. Without `choices` it is the beginning, whatever the number of choices.

    `created` is in seconds since the epoch. `seed` None: the request has its own, or one is still to be drawn.
    `num_end_events` of the events after all choices were sent. `identity` is set where `choices` are.
    """

    request_id: str
    created: int
    seed: int | None = None
    choices: tuple[ChoicePosition, ...] = ()
    num_end_events: int = 0
    identity: StreamIdentity | None = None

    @classmethod
    def parse(cls, text: str) -> "Position":
        """The position that an id names.

        Raises:
            RequestError: it is not an id of ours.
        """
        match = _ID.fullmatch(text) if len(text) <= MAX_ID_CHARACTERS else None
        if match is None:
            raise _malformed()
        request_id, created, seed, model, content, rest = match.groups()
        parts = rest.split(",") if rest else []
        end = _END.fullmatch(parts[-1]) if parts else None
        if end is not None:
            parts.pop()
        num_end_events = int(end[1]) if end is not None else 0
        choices = tuple(_position(part) for part in parts)
        identity = None if model is None else StreamIdentity(model, content)
        if (
            len(choices) > MAX_CHOICES
            or (end is not None and not all(position.ended for position in choices))
            or (identity is None) != (not choices)
        ):
            raise _malformed()
        return cls(request_id, int(created, 16), int(seed, 16), choices, num_end_events, identity)

    def format(self) -> str:
        """The id; the seed must be known."""
        choices = [_text(position) for position in self.choices]
        if self.num_end_events:
            choices.append(f"e{self.num_end_events}")
        identity = "" if self.identity is None else f"{self.identity.model}-{self.identity.content}"
        return f"{self.request_id}.{self.created:x}.{self.seed:x}.{identity}.{','.join(choices)}"


class EventIds:
    """Numbers the events of one stream, which begins at a position that has a place for each choice."""

    def __init__(self, start: Position) -> None:
        self._prefix = msgspec.structs.replace(start, choices=(), num_end_events=0).format().encode()
        self._choices = list(start.choices)
        self._texts = [_text(position) for position in start.choices]
        self._num_end_events = start.num_end_events

    def piece(self, choice: int, num_tokens: int, ends: bool, events: bytes) -> bytes:
        """The events of a choice's next tokens, with ids. Those that the position says were sent are left out."""
        position = self._choices[choice]
        num_sent = 0 if position.piece is None else position.piece.num_events
        blocks = _split(events)
        numbered = []
        for count, block in enumerate(blocks[:-1], 1):
            if count > num_sent:
                self._move(choice, ChoicePosition(position.num_tokens, False, Piece(num_tokens, ends, count)))
                numbered.append(self._with_id(block))
        self._move(choice, ChoicePosition(position.num_tokens + num_tokens, ends))
        numbered += [self._with_id(block) for block in blocks[-1:]]
        return b"".join(numbered)

    def end(self, events: bytes) -> bytes:
        """The events after all choices, with ids, but for those that were sent."""
        numbered = []
        for count, block in enumerate(_split(events), 1):
            if count > self._num_end_events:
                self._num_end_events = count
                numbered.append(self._with_id(block))
        return b"".join(numbered)

    def _move(self, choice: int, position: ChoicePosition) -> None:
        self._choices[choice] = position
        self._texts[choice] = _text(position)

    def _with_id(self, block: bytes) -> bytes:
        end = f",e{self._num_end_events}" if self._num_end_events else ""
        return b"id: %b%b%b\n%b" % (self._prefix, ",".join(self._texts).encode(), end.encode(), block)


def model_hash(fingerprint: str, adapter: str = "") -> str:
    """The hash of a core's fingerprint, and of an adapter's key, in an id: 12 hexadecimal digits."""
    text = f"{fingerprint}\0{adapter}" if adapter else fingerprint
    return blake2b(text.encode(), digest_size=6).hexdigest()


def _split(events: bytes) -> list[bytes]:
    """The single events; JSON has no line ends, so an empty line is always the end of one."""
    return [block + b"\n\n" for block in events.split(b"\n\n")[:-1]]


def _position(text: str) -> ChoicePosition:
    match = _CHOICE.fullmatch(text)
    if match is None:
        raise _malformed()
    num_tokens, ended, piece_tokens, piece_ends, num_events = match.groups()
    piece = None if piece_tokens is None else Piece(int(piece_tokens), bool(piece_ends), int(num_events))
    if ended and piece is not None:
        raise _malformed()
    return ChoicePosition(int(num_tokens), bool(ended), piece)


def _text(position: ChoicePosition) -> str:
    text = f"{position.num_tokens}{'f' if position.ended else ''}"
    if (piece := position.piece) is not None:
        text += f"+{piece.num_tokens}{'f' if piece.ends else ''}-{piece.num_events}"
    return text


def _malformed() -> RequestError:
    return RequestError(
        f"the header {LAST_EVENT_ID} is not the id of an event of this server; leave it out", LAST_EVENT_ID
    )
