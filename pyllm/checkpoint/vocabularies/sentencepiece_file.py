"""Reads a SentencePiece model file: its pieces, and the few settings that a tokenizer needs. Knows no `tokenizers`.

The file is a message of https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto in the wire
format of https://protobuf.dev/programming-guides/encoding. Fields without a use here are skipped.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from pyllm.errors import ConfigError

UNIGRAM, BPE = 1, 2  # of `model_type`
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # types of pieces

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
_Value = int | bytes


class Piece(msgspec.Struct, frozen=True):
    text: str
    score: float
    type: int


class SentencePieceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A vocabulary, whose ids are the indices of the pieces, and its settings; an absent special token is negative."""

    pieces: list[Piece]
    model_type: int
    byte_fallback: bool
    space_as_suffix: bool
    unknown_id: int
    bos_id: int
    eos_id: int
    charsmap: bytes
    adds_space_prefix: bool
    merges_spaces: bool
    escapes_spaces: bool

    def token(self, index: int) -> str:
        """The piece with this id; empty for the id of an absent token."""
        return self.pieces[index].text if 0 <= index < len(self.pieces) else ""


def read_sentencepiece(content: bytes, place: Path) -> SentencePieceFile:
    """The vocabulary and settings in the content of a SentencePiece model file; `place` is its path in errors.

    Raises:
        ConfigError: it is no such file, or a damaged one.
    """
    try:
        return _file(content)
    except (IndexError, struct.error, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{place} is no SentencePiece model, or a damaged one: {error}") from error


def _file(content: bytes) -> SentencePieceFile:
    pieces, messages = [], {}
    for number, value in _fields(content):
        if number == 1 and isinstance(value, bytes):
            pieces.append(_piece(value))
        elif isinstance(value, bytes):
            messages[number] = value
    if not pieces:
        raise ValueError("it has no pieces")
    trainer, normalizer = dict(_fields(messages.get(2, b""))), dict(_fields(messages.get(3, b"")))
    charsmap = normalizer.get(2, b"")
    return SentencePieceFile(
        pieces=pieces,
        model_type=_integer(trainer, 3, UNIGRAM),
        byte_fallback=bool(_integer(trainer, 35, 0)),
        space_as_suffix=bool(_integer(trainer, 24, 0)),
        unknown_id=_integer(trainer, 40, 0),
        bos_id=_integer(trainer, 41, 1),
        eos_id=_integer(trainer, 42, 2),
        charsmap=charsmap if isinstance(charsmap, bytes) else b"",
        adds_space_prefix=bool(_integer(normalizer, 3, 1)),
        merges_spaces=bool(_integer(normalizer, 4, 1)),
        escapes_spaces=bool(_integer(normalizer, 5, 1)),
    )


def _piece(message: bytes) -> Piece:
    fields = dict(_fields(message))
    text, score = fields.get(1, b""), fields.get(2, bytes(4))
    if not isinstance(text, bytes) or not isinstance(score, bytes):
        raise ValueError("a piece without text")
    return Piece(text.decode(), struct.unpack("<f", score)[0], _integer(fields, 3, 1))


def _integer(fields: dict[int, _Value], number: int, default: int) -> int:
    """An integer of a message; negative ones are written as 64 bits."""
    value = fields.get(number, default)
    if not isinstance(value, int):
        raise ValueError(f"its field {number} is no number")
    return value - (1 << 64) if value >= 1 << 63 else value


def _fields(message: bytes) -> Iterator[tuple[int, _Value]]:
    """The fields of a message with their numbers: integers, else the bytes of texts, messages and floats."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        size, at = _varint(message, at) if kind == _BYTES else (_WIDTHS.get(kind, -1), at)
        if size < 0 or at + size > len(message):
            raise ValueError(f"a field of an unknown kind or beyond the end at byte {at}")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The integer at an offset, seven bits a byte, lowest first, and the offset behind it."""
    if message[at] < 0x80:  # most are of one byte
        return message[at], at + 1
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError(f"a number of more than 64 bits at byte {at}")
