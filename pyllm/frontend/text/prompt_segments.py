"""Segments of a text whose ids, one after another, are exactly the ids of the whole. Knows no cache.

A text is cut only behind special tokens that the model's chat template writes, and only where the tokenizer is known to
look at nothing beyond them; elsewhere it stays whole.

`tokenizers` first splits a text at its added tokens that are not normalised, from left to right, the longest first. It
normalises, splits and encodes each part between them by itself, so that nothing crosses such a token. Three things
could: an added token that takes white space or looks at words beside it, another one that overlaps, and a `Metaspace`
that needs to know whether it is at the beginning of the text.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import tokenizers

MIN_PART = 1024  # characters between two cuts, so that a part is worth a place in a cache
MAX_SEGMENT_TOKENS = 8  # each costs one search of the text, 0.3 us for 1,000 characters

# Pre-tokenizers that split a text the same way, wherever in a prompt it stands.
_LOCAL_PRE_TOKENIZERS = {
    *("BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "FixedLength", "Metaspace", "Punctuation"),
    *("Sequence", "Split", "UnicodeScripts", "Whitespace", "WhitespaceSplit"),
}
# Beside a cut: white space, a word, a letter that joins the one before, a sign of its own.
_NEIGHBOURS = ("", " ", "\n\n ", "a", "1", " the", "\u0301", "é", "🙂", ".", "\u200d", "\t")


class PromptSegments:
    """The special tokens behind which one tokenizer's texts may be cut; `of` finds them."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = tuple(tokens)

    @classmethod
    def of(cls, tokenizer: tokenizers.Tokenizer, template: str | None) -> "PromptSegments":
        """The special tokens that the template writes and that are safe to cut behind; none where that is uncertain."""
        added = tokenizer.get_added_tokens_decoder().values()
        if not template or any(token.single_word or token.lstrip or token.rstrip for token in added):
            return cls(())
        if not _is_local(tokenizer.pre_tokenizer) or getattr(tokenizer.model, "dropout", None):
            return cls(())
        texts = [token.content for token in added if not token.normalized]
        certain = [
            text
            for text in texts
            if text in template and not any(_overlaps(other, text) for other in texts) and _holds(tokenizer, text)
        ]
        return cls(certain[:MAX_SEGMENT_TOKENS])

    def split(self, text: str) -> list[str]:
        """The text's parts. They begin with the parts of any text that it continues, except the last of those."""
        if len(text) <= MIN_PART or not self.tokens:
            return [text]
        ends = list(self._ends(text))
        return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True) if end > start]

    def _ends(self, text: str) -> Iterator[int]:
        """The ends of parts: each behind the first token that ends MIN_PART characters or more after the last end."""
        last = 0
        found = dict.fromkeys(self.tokens, -1)
        while True:
            ends = []
            for token in self.tokens:
                least = max(last + MIN_PART - len(token), 0)
                if found[token] < least:
                    index = text.find(token, least)
                    found[token] = len(text) if index < 0 else index
                if found[token] < len(text):
                    ends.append(found[token] + len(token))
            if not ends:
                return
            last = min(ends)
            yield last


def _overlaps(other: str, token: str) -> bool:
    """Whether an occurrence of `token` need not be that token, because `other` may be found there instead."""
    if other != token and token in other:
        return True
    return any(other.endswith(token[:length]) for length in range(1, len(token)))


def _is_local(pre_tokenizer: Any) -> bool:
    if pre_tokenizer is None:
        return True
    try:
        return all(
            part["type"] in _LOCAL_PRE_TOKENIZERS and part.get("prepend_scheme") != "first"
            for part in _parts(msgspec.json.decode(pre_tokenizer.__getstate__()))
        )
    except Exception:  # noqa: BLE001 - one of Python's own, or of a kind that does not tell what it is
        return False


def _parts(state: Any) -> Iterator[dict[str, Any]]:
    yield state
    for part in state.get("pretokenizers", ()):
        yield from _parts(part)


def _holds(tokenizer: tokenizers.Tokenizer, token: str) -> bool:
    """Whether cuts behind this token keep the ids in a trial, in case the tokenizer behaves in an unknown way."""

    def ids(texts: list[str]) -> list[list[int]]:
        return [each.ids for each in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    lefts = [left + token for left in _NEIGHBOURS]
    pairs = [(left, right) for left in range(len(lefts)) for right in range(1, len(_NEIGHBOURS))]
    whole = ids([lefts[left] + _NEIGHBOURS[right] for left, right in pairs])
    before, after = ids(lefts), ids(list(_NEIGHBOURS))
    return all(each == before[left] + after[right] for each, (left, right) in zip(whole, pairs, strict=True))
