"""The name that somebody meant: only one that is close in each of its words, because a wrong guess misleads."""

import difflib
from collections.abc import Iterable

# Of two words, by `difflib`'s ratio: `rum` and `run` have 0.67, `ctx` and `block` 0.25.
_CLOSE_WORDS = 0.65
# Of whole names where hyphens are missing or too many.
_CLOSE_NAMES = 0.88


def nearest_name(name: str, known: Iterable[str]) -> str:
    """The known name that is closest, or empty: its words, between hyphens, are each close to those of `name`.

    `name` may also lack last words (`--kv-cache-memory`) or have its hyphens elsewhere (`max_modellen`).
    """
    close = [other for other in dict.fromkeys(known) if _is_close(_words(name), _words(other))]
    return max(close, key=lambda other: _ratio(name.lower(), other.lower()), default="")


def _is_close(words: list[str], others: list[str]) -> bool:
    if len(words) == len(others) and all(map(_is_close_word, words, others)):
        return True
    if len(words) > 1 and others[: len(words)] == words:
        return True
    return _ratio("".join(words), "".join(others)) >= _CLOSE_NAMES


def _is_close_word(word: str, other: str) -> bool:
    return word == other or _ratio(word, other) >= _CLOSE_WORDS


def _words(name: str) -> list[str]:
    return name.lower().replace("_", "-").lstrip("-/").split("-")


def _ratio(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name, other).ratio()
