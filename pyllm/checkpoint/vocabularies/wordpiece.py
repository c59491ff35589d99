"""The stages of a `tokenizers` JSON for BERT's WordPiece. Knows no file and no GGUF field.

A text is cleaned and split into words at whitespace, punctuation and Chinese characters (Devlin et al., arXiv
1810.04805). Each word becomes the longest token that it begins with, then the longest one that its rest begins with,
and so on. Tokens that continue a word begin with `##`. A word that is not all tokens, or has more than 100 characters,
becomes one unknown token.

A text gets the ids of BertTokenizer of transformers, with which models are trained. llama.cpp gives most texts the same
ids, and others where a model sees other tokens than in training:

- Where it strips accents, it also drops marks that are no accents, such as vowels of Hindi and Tamil. Of a character
  that Unicode composes of several, such as a Korean syllable, it keeps the first.
- It ends a word before `▁`, and at U+000B, U+000C and U+0085, which are dropped here.
- It has no limit of characters. Here the limit also bounds the time for a word.
- It knows punctuation and marks that are newer than Unicode 8.
- It finds tokens of the user (type 4) only with the `▁` that the file has before them.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

_WORD, _CONTINUES = "▁", "##"


def wordpiece_stages(
    vocabulary: Mapping[str, int],
    unknown: str,
    *,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    splits_chinese: bool = True,
) -> dict[str, Any]:
    """The stages of BertTokenizer of transformers, which strips accents if it lowers case, unless `strip_accents`."""
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": splits_chinese,
            "strip_accents": strip_accents,
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": _CONTINUES, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": _CONTINUES,
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }


def spellings(tokens: Iterable[str], special: Collection[str]) -> list[str]:
    """The usual spellings of tokens from a GGUF file, where `▁` begins a word and nothing marks what continues one.

    `special` has the tokens that are spelled as usual. A word that would be spelled as one of these, or as a token that
    continues a word, keeps its `▁`: no text has it, since punctuation is a word of its own.
    """
    return [_spelling(token, special) if token and token not in special else token for token in tokens]


def _spelling(token: str, special: Collection[str]) -> str:
    word = token.removeprefix(_WORD)
    if word == token or not word:
        return _CONTINUES + token
    return token if word.startswith(_CONTINUES) or word in special else word
