"""The stages of a `tokenizers` JSON for byte-level BPE and for SentencePiece's BPE. Knows no file and no GGUF field.

SentencePiece scores tokens instead of ranking merges: of all neighbours whose join is a token, it makes the join of
the best score first, the leftmost of equal ones. Characters without a token become the tokens of their bytes. Ranked
merges give the same but for two cases, which no examined vocabulary shows: joins of equal score are made in the order
of their ids, and a character without a token is never merged.
"""

from collections.abc import Sequence
from typing import Any

from pyllm.checkpoint.vocabularies.pre_tokenizers import PreTokenizer, byte_level

_SPACE = "▁"


def bpe(
    vocabulary: dict[str, int],
    merges: Sequence[Sequence[str]],
    *,
    ignore_merges: bool = False,
    unknown: str | None = None,
) -> dict[str, Any]:
    """The BPE model. With a token `unknown` it falls back on the tokens of bytes, then on that token."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": unknown is not None,
        "byte_fallback": unknown is not None,
        "ignore_merges": ignore_merges,
        "vocab": vocabulary,
        "merges": merges,
    }


def byte_level_stages(
    vocabulary: dict[str, int], merges: Sequence[Sequence[str]], pre_tokenizer: PreTokenizer
) -> dict[str, Any]:
    """The stages of a byte-level BPE."""
    return {
        "normalizer": pre_tokenizer.normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizer.pre_tokenizers},
        "decoder": byte_level(use_regex=True),
        "model": bpe(vocabulary, merges, ignore_merges=pre_tokenizer.ignore_merges),
    }


def score_merges(tokens: Sequence[str], scores: Sequence[float], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Every pair of tokens whose join is a token, by the join's score, best first. Takes 1 s for 262,144 tokens."""
    return [
        (token[:end], token[end:])
        for index in sorted(range(len(tokens)), key=lambda index: -scores[index])
        for token in [tokens[index]]
        for end in range(len(token) - 1, 0, -1)
        if token[:end] in vocabulary and token[end:] in vocabulary
    ]


def normalizer(*, space_prefix: bool) -> dict[str, Any]:
    """Spells spaces; with `space_prefix` it puts one before each text."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prepend = [{"type": "Prepend", "prepend": _SPACE}] if space_prefix else []
    return {"type": "Sequence", "normalizers": [*prepend, replace]}


def decoder(*, space_prefix: bool) -> dict[str, Any]:
    """Joins tokens to a text; with `space_prefix` it removes the space before it."""
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if space_prefix else []
    replace = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    return {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]}
