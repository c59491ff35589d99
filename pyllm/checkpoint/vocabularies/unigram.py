"""The stages of a `tokenizers` JSON for a SentencePiece unigram vocabulary. Knows no GGUF field.

A text becomes the tokens with the highest sum of scores (Kudo, arXiv 1804.10959). As in llama.cpp, a character without
a token scores ten less than the worst token, and a run of such characters becomes one unknown token. Among splits of
equal score, such as two tokens in either order, the choice may differ from llama.cpp; and where a space is put before
each text, it is also put before a text of spaces only. A letter and the marks behind it are mapped as in transformers:
where the map has the letter with a part of the marks, the others may be lost, and Korean letters are not joined.
"""

import base64
from collections.abc import Sequence
from typing import Any

_SPACE = "▁"


def unigram(
    tokens: Sequence[str], scores: Sequence[float], unknown: int, *, byte_fallback: bool = False
) -> dict[str, Any]:
    """The unigram model; `unknown` is the id of the token for characters without a token.

    With `byte_fallback` such a character becomes the tokens of its bytes instead.
    """
    return {
        "type": "Unigram",
        "unk_id": unknown,
        "vocab": list(zip(tokens, scores, strict=False)),
        "byte_fallback": byte_fallback,
    }


def normalizer(*, charsmap: bytes, merges_spaces: bool, space_prefix: bool) -> dict[str, Any]:
    """The normalizer; `charsmap` is SentencePiece's compiled map of characters, empty where there is none."""
    stages = [_precompiled(charsmap)] if charsmap else []
    if merges_spaces:
        stages.append({"type": "Replace", "pattern": {"Regex": " +"}, "content": " "})
        stages.append({"type": "Replace", "pattern": {"Regex": r"\A | \z"}, "content": ""})
    stages.append({"type": "Replace", "pattern": {"String": " "}, "content": _SPACE})
    if space_prefix or merges_spaces:
        stages.append({"type": "Prepend", "prepend": _SPACE})
    return {"type": "Sequence", "normalizers": stages}


def decoder() -> dict[str, Any]:
    """The decoder, which removes the space that was put before a text."""
    replace = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    return {
        "type": "Sequence",
        "decoders": [replace, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
    }


def t5_stages(charsmap: bytes) -> dict[str, Any]:
    """The stages before and after the model for T5Tokenizer of transformers, which drops and joins all whitespace."""
    metaspace = {"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": "always", "split": True}
    return {
        "normalizer": _precompiled(charsmap) if charsmap else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
        "decoder": metaspace,
    }


def _precompiled(charsmap: bytes) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
