"""Tokens of one sample to text, piece by piece, never half a character. Knows neither stop strings nor requests."""

import codecs
from collections.abc import Collection, Sequence
from typing import Protocol

import tokenizers
from tokenizers.decoders import DecodeStream

# A character has at most four bytes, so no more tokens than this can hold the start of one that is not complete.
CONTEXT_TOKENS = 4


class TextDecoder(Protocol):
    """Turns successive tokens into successive pieces of text, which together are the text of all of them.

    The start of a character whose end has not come yet is held back; at the end of a sample it is left out.
    """

    def decode(self, tokens: Sequence[int]) -> str: ...


class TokenPieces(dict[int, str | bytes]):
    """Tokens of a byte-level vocabulary by id: the text, or the bytes where they are not whole characters.

    A token is worked out when it is first needed. Those that are `skipped`, and unknown ids, have no text.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, skipped: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self.update(dict.fromkeys(skipped, ""))

    def __missing__(self, token: int) -> str | bytes:
        text = token_spelling(self._tokenizer, token)
        if text is None:
            return ""
        piece = self[token] = _token_piece(text)
        return piece


class ByteDecoder:
    """The decoder of byte-level vocabularies (GPT-2, Llama 3, Qwen): every token is some bytes of UTF-8.

    Bytes that are not UTF-8 become U+FFFD, exactly as in `tokenizers`. A token costs a table look-up, however long the
    sample is.
    """

    __slots__ = ("_begun", "_pieces")

    def __init__(self, pieces: TokenPieces, context: Sequence[int]) -> None:
        self._pieces = pieces
        self._begun = b""  # a character whose end has not come yet
        self.decode(context[-CONTEXT_TOKENS:])

    def decode(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete."""
        table = self._pieces
        if len(tokens) == 1 and not self._begun:
            piece = table[tokens[0]]
            if isinstance(piece, str):
                return piece
        pieces = [table[token] for token in tokens]
        known = self._begun + b"".join([piece.encode() if isinstance(piece, str) else piece for piece in pieces])
        text, end = codecs.utf_8_decode(known, "replace", False)
        self._begun = known[end:]
        if self._begun and len(rest := self._begun.decode(errors="replace")) > 1:
            # Half a surrogate pair: Python waits for the other half, which UTF-8 does not allow.
            self._begun = b""
            return text + rest
        return text


class StreamDecoder:
    """The decoder of all other vocabularies (as SentencePiece with byte fallback), over `tokenizers`' own stream.

    `context` is the end of the prompt: with it the first word keeps the space before it.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, context: Sequence[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._stream = DecodeStream(list(context[-CONTEXT_TOKENS:]), skip_special_tokens)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete."""
        return "".join([self._step(token) for token in tokens])

    def _step(self, token: int) -> str:
        try:
            return self._stream.step(self._tokenizer, token) or ""
        except Exception:  # noqa: BLE001 - the library raises Exception itself
            # The text so far changed under the stream, as after bytes that are no character; begin anew from here.
            self._stream = DecodeStream([], self._skip_special_tokens)
            return self._stream.step(self._tokenizer, token) or ""


def token_spelling(tokenizer: tokenizers.Tokenizer, token: int) -> str | None:
    """The vocabulary's spelling of a token; None for an unknown id, of any size."""
    return tokenizer.id_to_token(token) if 0 <= token < 1 << 32 else None


def _token_piece(text: str) -> str | bytes:
    try:
        piece = text.translate(_ALPHABET).encode("latin-1")
    except UnicodeEncodeError:  # An added token with a character outside the alphabet stands for itself.
        return text
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return piece


def _byte_alphabet() -> dict[int, int | str]:
    """GPT-2's map from printable characters to bytes, for `str.translate`; other Latin-1 characters map outside it."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet: dict[int, int | str] = dict.fromkeys(others, "\uffff")
    return alphabet | {byte: byte for byte in printable} | {256 + index: byte for index, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()
