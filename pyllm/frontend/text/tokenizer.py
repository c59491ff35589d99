"""Text to token ids and back, over the `tokenizers` library. Knows no template (`templates.py`) and no request."""

import sys
from array import array
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import tokenizers
from tokenizers import decoders
from tokenizers.models import BPE

from pyllm.checkpoint.types import TokenizerFiles
from pyllm.errors import ConfigError, RequestError
from pyllm.frontend.text.prompt_segments import PromptSegments
from pyllm.frontend.text.text_decoder import (
    CONTEXT_TOKENS,
    ByteDecoder,
    StreamDecoder,
    TextDecoder,
    TokenPieces,
    token_spelling,
)
from pyllm.frontend.text.vocabulary import Vocabulary

# Below this a text is encoded in 0.2 ms, twice what a thread takes to be woken and to answer.
INLINE_CHARACTERS = 1024
_MOST_TEXTS = 1 << 18  # of tokens that are kept; the largest vocabularies have about as many


class PairFrame(NamedTuple):
    """The special tokens before, between and after two texts, each with its token type, and the types of both texts.

    A text in a pair has the tokens that it has alone.
    """

    around: tuple[Sequence[tuple[int, int]], ...]
    types: tuple[int, int]

    @property
    def num_tokens(self) -> int:
        """The number of special tokens."""
        return sum(map(len, self.around))

    @property
    def has_types_of_bert(self) -> bool:
        """Whether all types are 0 or 1, and that of the first text 0."""
        kinds = {kind for part in self.around for _, kind in part}
        return self.types[0] == 0 and kinds | {self.types[1]} <= {0, 1}


class Tokenizer:
    """One model's tokenizer. Read-only once made, so any thread may use it.

    `segments` has the places where texts may be cut. `frame` has the packed ids that special tokens add before and
    after any text; None where they do more. `bos_token` and `eos_token` are their texts, empty where there is none.

    Raises:
        ConfigError: the file cannot be read.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(files.path)
        except Exception as error:  # noqa: BLE001 - the library raises Exception itself
            raise ConfigError(f"cannot read the tokenizer {files.path}: {error}") from None
        # Some files carry the limits that the model was trained with.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added_tokens = self._tokenizer.get_added_tokens_decoder()
        self._added = {added.content: token for token, added in added_tokens.items()}
        self.bos_token, self.eos_token = files.bos_token, files.eos_token
        self.segments = PromptSegments.of(self._tokenizer, files.chat_template)
        self.frame = self._find_frame()
        # Log-probabilities of a whole vocabulary ask for all of them again and again.
        self.token_text = lru_cache(_MOST_TEXTS)(self._token_text)
        """One token as a text of its own; bytes that are no character become U+FFFD."""
        # With special tokens, and without; empty where the vocabulary is none of bytes.
        self._pieces: dict[bool, TokenPieces] = {}
        if isinstance(self._tokenizer.decoder, decoders.ByteLevel):
            special = [token for token, added in added_tokens.items() if added.special]
            self._pieces = {False: TokenPieces(self._tokenizer), True: TokenPieces(self._tokenizer, special)}

    @property
    def library(self) -> tokenizers.Tokenizer:
        """The library's tokenizer, for functions without a method here; it must not be changed."""
        return self._tokenizer

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; `add_special_tokens` begins it with the BOS token, where the model has one."""
        (tokens,) = self.encode_batch([text], add_special_tokens)
        return tokens

    def encode_batch(self, texts: list[str], add_special_tokens: bool = True) -> list[list[int]]:
        """`encode` for each of some texts."""
        # encode_batch_fast gives the same ids as encode, without offsets, and lets other threads run meanwhile.
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def encode_packed(self, texts: list[str], add_special_tokens: bool = False) -> list[bytes | Exception]:
        """Each text's ids as little-endian int32, or an exception: a RequestError for a text that is not Unicode."""
        try:
            batch = self.encode_batch(texts, add_special_tokens)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other texts are not to blame
            if len(texts) > 1:
                return [result for text in texts for result in self.encode_packed([text], add_special_tokens)]
            return [_fault(texts[0]) or error]
        return [array("i", ids).tobytes() for ids in batch]

    @cached_property
    def pair_frame(self) -> PairFrame:
        """The special tokens around two texts.

        Raises:
            ConfigError: the tokenizer joins no two texts, or in another order.
        """
        # Some vocabularies have no token for an "a".
        pairs = self._tokenizer.encode_batch([(text, text) for text in ("a", "A", "0", "the", "\u4e00")])
        encoding = next((pair for pair in pairs if {0, 1} <= {*pair.sequence_ids}), pairs[0])
        texts, tokens = encoding.sequence_ids, list(zip(encoding.ids, encoding.type_ids, strict=True))
        first, second = ([index for index, text in enumerate(texts) if text == which] for which in (0, 1))
        if not first or not second or first[-1] > second[0]:
            raise ConfigError("the tokenizer does not join two texts one after the other, so it makes no pairs")
        around = tokens[: first[0]], tokens[first[-1] + 1 : second[0]], tokens[second[-1] + 1 :]
        return PairFrame(around, (encoding.type_ids[first[0]], encoding.type_ids[second[0]]))

    def min_tokens(self, text: str) -> int:
        """A lower bound of the text's tokens, by which a text that is far too long is refused without encoding it."""
        return len(text) // self._extent[0]

    def prepare(self) -> None:
        """Work out what the first long text would wait for, and a start need not: 1 us a token, with the GIL."""
        _ = self._extent

    @property
    def max_token_id(self) -> int:
        """The largest id, added tokens included."""
        return self._extent[1]

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids; bytes that are no character become U+FFFD."""
        return self._tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that one token stands for, which need not be whole characters; none for an unknown id."""
        if self._pieces:
            piece = self._pieces[False][token]
            return piece if isinstance(piece, bytes) else piece.encode()
        return _sentence_piece(token_spelling(self._tokenizer, token) or "")

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The texts of all tokens but added ones and parts of characters. Takes some 2 us a token, once."""
        added = set(self._added.values())
        texts = ["" if token in added else self.token_text(token) for token in range(self.max_token_id + 1)]
        return Vocabulary(["" if "\ufffd" in text else text for text in texts])

    def token_names(self, tokens: Sequence[int]) -> list[str]:
        """The vocabulary's spelling of each token; empty for an unknown id."""
        return [self._tokenizer.id_to_token(token) or "" for token in tokens]

    def added_token_id(self, text: str) -> int | None:
        """The id of a text that is one added token, special or not, as markers of chats are; None for any other."""
        return self._added.get(text)

    def text_decoder(self, prompt: Sequence[int], skip_special_tokens: bool = True) -> TextDecoder:
        """A decoder for the tokens after `prompt`, whose invalid ids have no text."""
        context = [token for token in prompt[-CONTEXT_TOKENS:] if 0 <= token < 2**31]
        if self._pieces:
            return ByteDecoder(self._pieces[skip_special_tokens], context)
        return StreamDecoder(self._tokenizer, context, skip_special_tokens)

    @cached_property
    def _extent(self) -> tuple[int, int]:
        """The most characters of a token, and the largest id; see `prepare`."""
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        # Others make one token of a word that is too long or of characters that they do not know, and none of spaces.
        is_bounded = isinstance(self._tokenizer.model, BPE)
        return max(map(len, vocabulary)) if is_bounded else sys.maxsize, max(vocabulary.values())

    def _token_text(self, token: int) -> str:
        return self.token_bytes(token).decode(errors="replace")

    def _find_frame(self) -> tuple[bytes, bytes] | None:
        """The packed ids that special tokens add before and after any text; None where they do more."""
        texts = ["x", "", "Hello, world", *self.segments.tokens]
        framed, plain = self.encode_batch(texts), self.encode_batch(texts, add_special_tokens=False)
        for start in range(len(framed[0]) - len(plain[0]) + 1):
            head, tail = framed[0][:start], framed[0][start + len(plain[0]) :]
            if all(each == [*head, *inner, *tail] for each, inner in zip(framed, plain, strict=True)):
                return array("i", head).tobytes(), array("i", tail).tobytes()
        return None


def _fault(text: str) -> RequestError | None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return RequestError("the prompt is not valid Unicode: it has half of a surrogate pair", "prompt")
    return None


def _sentence_piece(piece: str) -> bytes:
    """The bytes of a piece of SentencePiece's, such as `▁the` or, where it falls back to bytes, `<0x0A>`."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes.fromhex(piece[3:5])
    return piece.replace("▁", " ").encode()
