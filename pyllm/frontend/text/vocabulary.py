"""The texts of a vocabulary's tokens, searched for words that a token joins with what is around them."""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

_END = "\0"  # of a token's text
# Thai, Lao, Burmese, Khmer, Japanese, Chinese and Korean: words follow each other without a space.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\U00020000-\U0003ffff]"
)


class Vocabulary:
    """`texts` are those of the tokens by their ids, empty for tokens that are no part of a text."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = ["" if _END in text else text for text in texts]
        self._all = _END + _END.join(self.texts) + _END
        self._starts = list(accumulate((len(text) + 1 for text in self.texts), initial=1))

    def with_word(self, word: str) -> Iterator[int]:
        """Tokens whose texts contain a whole word."""
        for token, start in self._find(word):
            text = self.texts[token]
            if is_edge(text[:start], word) and is_edge(word, text[start + len(word) :]):
                yield token

    def places(self, word: str) -> set[str]:
        """The texts that stand before a word in tokens that end within it: `(` for `knew` if `(k` is a token."""
        found = [each for length in range(1, len(word)) for each in self._find(word[:length] + _END)]
        places = {self.texts[token][:start] for token, start in found}
        return {place for place in places if place and is_edge(place, word)}

    def longer(self, token: int) -> Iterator[int]:
        """Tokens that extend a token at the end of a word by text that follows the word."""
        if begin := self.texts[token]:
            yield from self.beyond(begin)

    def beyond(self, begin: str) -> Iterator[int]:
        """Tokens that begin with the end of a word, and extend beyond it."""
        for other, _ in self._find(_END + begin):
            if (rest := self.texts[other][len(begin) :]) and is_edge(begin, rest):
                yield other

    def _find(self, wanted: str) -> Iterator[tuple[int, int]]:
        """Tokens, and the index of these characters in their texts, a leading end mark not counted."""
        at = self._all.find(wanted)
        while at >= 0:
            first = at + wanted.startswith(_END)
            token = bisect_right(self._starts, first) - 1
            yield token, first - self._starts[token]
            at = self._all.find(wanted, at + 1)


def is_edge(before: str, after: str) -> bool:
    """Whether a word may begin or end between two texts."""
    if not before or not after:
        return True
    last, first = before[-1], after[0]
    if unicodedata.category(first).startswith("M"):  # a mark on the letter before it
        return False
    return not (last.isalnum() and first.isalnum()) or bool(_UNSPACED.match(last) or _UNSPACED.match(first))
