"""Builds a `tokenizers` JSON from the fields of a GGUF file. Byte-level BPE only; knows no file.

A GGUF names the way text is split before the merges apply (`tokenizer.ggml.pre`) and leaves its meaning to the reader.
Each entry below is what the original model's own tokenizer.json does.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from pyllm.errors import ConfigError

Fields = Mapping[str, Any]

_CONTROL, _USER_DEFINED = 3, 4  # token types of GGUF


class _Splitting(msgspec.Struct, frozen=True):
    pre_tokenizers: tuple[dict[str, Any], ...]
    ignore_merges: bool = False
    adds_bos: bool = False
    normalizer: dict[str, Any] | None = None


def _pattern(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

_SPLITTINGS = {
    "gpt-2": _Splitting((_byte_level(True),)),
    "smollm": _Splitting(({"type": "Digits", "individual_digits": True}, _byte_level(True))),
    "llama-bpe": _Splitting(
        (_pattern(_WORDS + r"\p{N}{1,3}" + _REST), _byte_level(False)), ignore_merges=True, adds_bos=True
    ),
    "qwen2": _Splitting((_pattern(_WORDS + r"\p{N}" + _REST), _byte_level(False)), normalizer={"type": "NFC"}),
}


def tokenizer_json(fields: Fields) -> bytes:
    """A tokenizer.json of the vocabulary, merges and special tokens in a GGUF file.

    Raises:
        ConfigError: the kind of tokenizer is not supported (with its name), or a field is missing or inconsistent.
    """
    splitting = _splitting(fields)
    tokens, merges = fields.get("tokenizer.ggml.tokens"), fields.get("tokenizer.ggml.merges")
    types = fields.get("tokenizer.ggml.token_type")
    if not tokens or merges is None or types is None or len(types) != len(tokens):
        raise ConfigError("the GGUF file's tokenizer lacks its tokens, its merges or a type for each token")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [merge.split(" ", 1) for merge in merges]
    for pair in pairs:
        if any(token not in vocabulary for token in (*pair, "".join(pair))):
            raise ConfigError(f"the GGUF file's tokenizer merges {pair}, which are not all among its tokens")
    added = [
        {
            "id": index,
            "content": tokens[index],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == _CONTROL,
        }
        for index, kind in enumerate(types)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": splitting.normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splitting.pre_tokenizers},
        "post_processor": _post_processor(fields, tokens),
        "decoder": _byte_level(True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": splitting.ignore_merges,
            "vocab": vocabulary,
            "merges": pairs,
        },
    }
    return msgspec.json.encode(document)


def _adds_bos_token(fields: Fields) -> bool:
    """Whether a prompt starts with the BOS token: as the file says, else as llama.cpp does for this splitting."""
    return bool(fields.get("tokenizer.ggml.add_bos_token", _splitting(fields).adds_bos))


def _splitting(fields: Fields) -> _Splitting:
    model, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "default")
    if model != "gpt2":
        raise ConfigError(f"tokenizer.ggml.model {model!r} is not supported, only 'gpt2' (byte-level BPE)")
    if pre not in _SPLITTINGS:
        raise ConfigError(f"tokenizer.ggml.pre {pre!r} is not supported; supported: {', '.join(sorted(_SPLITTINGS))}")
    return _SPLITTINGS[pre]


def _post_processor(fields: Fields, tokens: list[str]) -> dict[str, Any] | None:
    bos = fields.get("tokenizer.ggml.bos_token_id")
    if not _adds_bos_token(fields):
        return None
    if bos is None:
        raise ConfigError("tokenizer.ggml.add_bos_token is set, but the GGUF file names no BOS token")
    token = tokens[bos]
    special, text = {"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [special, text],
        "pair": [special, text, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {token: {"id": token, "ids": [bos], "tokens": [token]}},
    }
