"""The stages of a `tokenizers` JSON that stand for a SentencePiece unigram vocabulary. Knows no GGUF field.

A text becomes the tokens whose scores add up to most (Kudo, arXiv 1804.10959). As in llama.cpp, characters without a
token count as the worst score less ten, and those in a row become one unknown token. Of ways that add up to the same,
such as two tokens in either order, it may take another one; and where a space comes before each text, it comes before
one of nothing but spaces, too.
"""

import base64
from collections.abc import Sequence
from typing import Any

_SPACE = "▁"


def unigram(tokens: Sequence[str], scores: Sequence[float], unknown: int) -> dict[str, Any]:
    """The model; `unknown` is the token of what no other stands for."""
    return {
        "type": "Unigram",
        "unk_id": unknown,
        "vocab": list(zip(tokens, scores, strict=False)),
        "byte_fallback": False,
    }


def normalizer(*, charsmap: bytes, merges_spaces: bool, space_prefix: bool) -> dict[str, Any]:
    """`charsmap` is SentencePiece's compiled map of characters, empty where there is none."""
    stages: list[dict[str, Any]] = []
    if charsmap:
        stages.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()})
    if merges_spaces:
        stages.append({"type": "Replace", "pattern": {"Regex": " +"}, "content": " "})
        stages.append({"type": "Replace", "pattern": {"Regex": r"\A | \z"}, "content": ""})
    stages.append({"type": "Replace", "pattern": {"String": " "}, "content": _SPACE})
    if space_prefix or merges_spaces:
        stages.append({"type": "Prepend", "prepend": _SPACE})
    return {"type": "Sequence", "normalizers": stages}


def decoder() -> dict[str, Any]:
    """The text of tokens, without the space that was put before it."""
    replace = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    return {
        "type": "Sequence",
        "decoders": [replace, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
    }
