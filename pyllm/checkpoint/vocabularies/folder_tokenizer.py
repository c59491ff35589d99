"""Builds a `tokenizers` JSON for a Hugging Face folder without one, from the vocabulary file that it has.

These are SentencePiece's (tokenizer.model, spiece.model, sentencepiece.bpe.model), tiktoken's (tokenizer.model,
tiktoken.model), a vocab.json with its merges.txt, and BERT's vocab.txt. A text gets the ids that it has with
`AutoTokenizer` of transformers 5.23, where that reads the folder with a class of its own. Where transformers only has
its general class, it leaves out the space before a text, and the removal of spaces, that a SentencePiece file asks for,
so that a model sees other tokens than in training: here the file is followed. Tokenizers made by a repository's own
code, and other classes, are refused by name.

Opens no file.
"""

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pyllm.checkpoint.vocabularies import unigram, wordpiece
from pyllm.checkpoint.vocabularies.bpe import bpe, byte_level_stages, decoder, normalizer, score_merges
from pyllm.checkpoint.vocabularies.document import added_token, encode_document
from pyllm.checkpoint.vocabularies.pre_tokenizers import BYTE_OF_CHARACTER, TIKTOKEN, TOKENIZER_CLASSES, PreTokenizer
from pyllm.checkpoint.vocabularies.sentencepiece_file import (
    BPE,
    CONTROL,
    UNIGRAM,
    UNKNOWN,
    USER_DEFINED,
    SentencePieceFile,
    read_sentencepiece,
)
from pyllm.errors import ConfigError
from pyllm.machine.extras import extra_command

_MODELS = ("tokenizer.model", "tiktoken.model", "spiece.model")  # of SentencePiece or tiktoken
_FAIRSEQ = "sentencepiece.bpe.model"
_WORDPIECE = "vocab.txt"
VOCABULARY_FILES = (*_MODELS, "vocab.json", "merges.txt", _FAIRSEQ, _WORDPIECE)
"""The files that this module reads."""

# Files of tokenizers that are not built here.
_OTHERS = ("tekken.json", "*.tiktoken", "vocab.json", "tokenizer.model.v*")
# Classes of transformers, without a final "Fast", that leave all to the SentencePiece file; and T5's, with more tokens.
_T5 = "T5Tokenizer"
_GENERAL = ("", "PreTrainedTokenizer", "TokenizersBackend")
_SENTENCEPIECE = (*_GENERAL, "LlamaTokenizer", "GemmaTokenizer", _T5)
_TIKTOKEN = (*_GENERAL, "LlamaTokenizer")
_BERT, _XLM_ROBERTA = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"), "XLMRobertaTokenizer"
# The classes of models whose tokenizer_config.json names none.
_MODEL_CLASSES = {
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), "Qwen2Tokenizer"),
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "opt", "phi", "starcoder2"), "GPT2Tokenizer"),
    **dict.fromkeys(("gpt_neox", "olmo", "olmoe"), "GPTNeoXTokenizer"),
    **dict.fromkeys(("bert", "distilbert", "electra", "nomic_bert"), "BertTokenizer"),
    "xlm-roberta": _XLM_ROBERTA,
}
# The special tokens of these classes, for folders that name no others; XLM-RoBERTa's have the first ids and the last.
_BERT_NAMES = {
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "unk_token": "[UNK]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
}
_FAIRSEQ_NAMES = {
    "bos_token": "<s>",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}
_END_OF_TEXT = "<|endoftext|>"


class BuiltTokenizer(NamedTuple):
    """A tokenizer.json, and the BOS and EOS tokens of a folder that names none; an absent token is empty."""

    content: bytes
    bos_token: str
    eos_token: str


class _Vocabulary(NamedTuple):
    """The stages of a tokenizer; `ids` are those of its tokens.

    Each text begins with `first` and ends with `last`, whatever the folder's settings say, unless they are empty.
    """

    stages: Mapping[str, Any]
    ids: Mapping[str, int]
    bos_token: str = ""
    eos_token: str = ""
    added_tokens: tuple[Mapping[str, Any], ...] = ()
    first: str = ""
    last: str = ""


class TokenizerSettings(msgspec.Struct):
    """The fields of tokenizer_config.json that change the ids of a text."""

    tokenizer_class: str | None = None
    auto_map: Any = None
    add_bos_token: bool | None = None
    add_eos_token: bool | None = None
    add_prefix_space: bool | None = None
    legacy: bool | None = None
    extra_ids: int | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None
    never_split: Any = None


class VocabularyFolder(msgspec.Struct, frozen=True):
    """A folder without a tokenizer.json: the contents of those of `VOCABULARY_FILES` that it has, and its settings."""

    path: Path
    files: Mapping[str, bytes]
    settings: TokenizerSettings
    model_type: str


def build_tokenizer(folder: VocabularyFolder, named: Mapping[str, str], added: Mapping[str, int]) -> BuiltTokenizer:
    """The tokenizer of a folder.

    `named` has the special tokens that the folder's other files name (such as `bos_token`, `cls_token`), `added` the
    ids of tokens beyond the vocabulary.

    Raises:
        ConfigError: the folder has no vocabulary, a damaged one, or one that is not supported: the text has the
            commands with which transformers writes a tokenizer.json.
    """
    vocabulary, settings = _vocabulary(folder, named), folder.settings
    ids = {**vocabulary.ids, **added}
    bos_token = named.get("bos_token") or vocabulary.bos_token
    eos_token = named.get("eos_token") or vocabulary.eos_token
    first = vocabulary.first or (bos_token if settings.add_bos_token else "")
    last = vocabulary.last or (eos_token if settings.add_eos_token else "")
    bos, eos = ((token, ids[token]) if token in ids else None for token in (first, last))
    ends_between = 2 if "roberta" in folder.model_type else 1
    content = encode_document(vocabulary.stages, vocabulary.added_tokens, bos, eos, ends_between)
    return BuiltTokenizer(content, bos_token, eos_token)


def _vocabulary(folder: VocabularyFolder, named: Mapping[str, str]) -> _Vocabulary:
    files, settings = folder.files, folder.settings
    name = (settings.tokenizer_class or "").removesuffix("Fast")
    if settings.auto_map is not None:
        raise _refusal(folder, f"the repository's own code makes its tokenizer ({name or 'auto_map'})")
    if model := next((file for file in _MODELS if file in files), None):
        ranks = _tiktoken_ranks(files[model], folder.path / model)
        if ranks is None and name in _SENTENCEPIECE:
            return _sentencepiece(read_sentencepiece(files[model], folder.path / model), name, settings, named)
        if ranks is not None and name in _TIKTOKEN:
            return _tiktoken(ranks)
        raise _refusal(folder, f"{model} is for the tokenizer_class {name}")
    name = _MODEL_CLASSES.get(folder.model_type, name) if name in _GENERAL else name
    if "vocab.json" in files and "merges.txt" in files:
        if name in TOKENIZER_CLASSES:
            return _byte_level(folder, name)
        raise _refusal(folder, f"vocab.json is for the tokenizer_class {name or 'of an unknown model'}")
    if _FAIRSEQ in files and name == _XLM_ROBERTA:
        return _xlm_roberta(read_sentencepiece(files[_FAIRSEQ], folder.path / _FAIRSEQ), named)
    if _WORDPIECE in files and name in _BERT:
        return _wordpiece(folder, named)
    if vocabulary := next((file for file in (_FAIRSEQ, _WORDPIECE) if file in files), None):
        raise _refusal(folder, f"{vocabulary} is for the tokenizer_class {name or 'of an unknown model'}")
    if found := sorted({file.name for pattern in _OTHERS for file in folder.path.glob(pattern)}):
        raise _refusal(folder, f"it has only {', '.join(found)}")
    raise ConfigError(
        f"{folder.path} has no tokenizer.json and no other vocabulary: give the tokenizer of another model"
    )


def _refusal(folder: VocabularyFolder, reason: str) -> ConfigError:
    convert = f"AutoTokenizer.from_pretrained({str(folder.path)!r}).save_pretrained({str(folder.path)!r})"
    return ConfigError(
        f"{folder.path} has no tokenizer.json, and pyllm does not build one: {reason}. transformers may write it: "
        f'{extra_command("transformers")}, then python -c "from transformers import AutoTokenizer; {convert}"; or give '
        "the tokenizer of another model"
    )


def _sentencepiece(
    file: SentencePieceFile, name: str, settings: TokenizerSettings, named: Mapping[str, str]
) -> _Vocabulary:
    if file.model_type not in (UNIGRAM, BPE) or file.space_as_suffix or not file.escapes_spaces:
        raise ConfigError(
            f"the SentencePiece model has the model_type {file.model_type}, treat_whitespace_as_suffix "
            f"{file.space_as_suffix} and escape_whitespaces {file.escapes_spaces}; supported are BPE and unigram with "
            "'▁' before words"
        )
    tokens, scores = [piece.text for piece in file.pieces], [piece.score for piece in file.pieces]
    added = [
        added_token(index, piece.text, special=piece.type != USER_DEFINED)
        for index, piece in enumerate(file.pieces)
        if piece.type in (UNKNOWN, CONTROL, USER_DEFINED)
    ]
    if name == _T5:
        last = 100 if settings.extra_ids is None else settings.extra_ids
        extra = [f"<extra_id_{number}>" for number in range(last - 1, -1, -1)]
        added += [added_token(index, token, special=True) for index, token in enumerate(extra, start=len(tokens))]
        tokens, scores = tokens + extra, scores + [0.0] * len(extra)
    ids = {token: index for index, token in enumerate(tokens)}
    unknown = file.token(file.unknown_id)
    if len(ids) < len(tokens) or not unknown:
        raise ConfigError("the SentencePiece model is damaged: it has a token twice, or no unknown token")
    if file.model_type == UNIGRAM:
        model = unigram.unigram(tokens, scores, file.unknown_id, byte_fallback=file.byte_fallback)
    else:
        model = bpe(ids, score_merges(tokens, scores, ids), unknown=unknown)
    return _Vocabulary(
        {**(unigram.t5_stages(file.charsmap) if name == _T5 else _spaces(file, settings)), "model": model},
        ids,
        file.token(file.bos_id),
        file.token(file.eos_id),
        tuple(added),
        last=(named.get("eos_token") or file.token(file.eos_id)) if name == _T5 else "",
    )


def _xlm_roberta(file: SentencePieceFile, named: Mapping[str, str]) -> _Vocabulary:
    """The vocabulary of fairseq: the first three pieces give way to four special tokens, and a last one is added."""
    *first, mask = (named.get(field) or usual for field, usual in _FAIRSEQ_NAMES.items())
    pieces = file.pieces[3:]
    tokens = [*first, *(piece.text for piece in pieces), mask]
    scores = [*[0.0] * len(first), *(piece.score for piece in pieces), 0.0]
    ids = {token: index for index, token in enumerate(tokens)}
    if file.model_type != UNIGRAM or len(ids) < len(tokens):
        raise ConfigError(
            f"{_FAIRSEQ} has the model_type {file.model_type} and {len(tokens)} tokens, of which {len(ids)} differ; "
            f"supported is unigram ({UNIGRAM}) without equal tokens"
        )
    user_defined = {piece.text for piece in pieces if piece.type == USER_DEFINED}
    added = [
        added_token(index, token, special=token not in user_defined)
        for token, index in ids.items()
        if token in user_defined or token in first or token == mask
    ]
    bos_token, _, eos_token, unknown = first
    model = unigram.unigram(tokens, scores, ids[unknown])
    stages = {**unigram.t5_stages(file.charsmap), "model": model}
    return _Vocabulary(stages, ids, bos_token, eos_token, tuple(added), bos_token, eos_token)


def _wordpiece(folder: VocabularyFolder, named: Mapping[str, str]) -> _Vocabulary:
    """The vocabulary of a vocab.txt, which has a token a line."""
    settings, path = folder.settings, folder.path / _WORDPIECE
    if settings.never_split:
        raise _refusal(folder, f"its never_split has the words {settings.never_split}, which stay whole")
    try:
        lines = folder.files[_WORDPIECE].decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is damaged: {error}") from error
    ids = {line.rstrip(): index for index, line in enumerate(lines)}
    special = {field: named.get(field) or usual for field, usual in _BERT_NAMES.items()}
    first, last, unknown = (special[field] for field in ("cls_token", "sep_token", "unk_token"))
    if missing := [token for token in (first, last, unknown) if token not in ids]:
        raise ConfigError(f"{path} has no token {missing[0]}: it is damaged, or of another tokenizer")
    stages = wordpiece.wordpiece_stages(
        ids,
        unknown,
        lowercase=settings.do_lower_case is not False,
        strip_accents=settings.strip_accents,
        splits_chinese=settings.tokenize_chinese_chars is not False,
    )
    added = [added_token(ids[token], token, special=True) for token in special.values() if token in ids]
    return _Vocabulary(stages, ids, added_tokens=tuple(added), first=first, last=last)


def _spaces(file: SentencePieceFile, settings: TokenizerSettings) -> dict[str, Any]:
    """The stages that spell a text's spaces before the model, and make spaces of them in its answer."""
    prefix = file.adds_space_prefix if settings.add_prefix_space is None else settings.add_prefix_space
    stages = {"pre_tokenizer": None, "decoder": decoder(space_prefix=prefix)}
    if file.charsmap or file.merges_spaces:
        before = unigram.normalizer(charsmap=file.charsmap, merges_spaces=file.merges_spaces, space_prefix=prefix)
        return {"normalizer": before, **stages}
    if not prefix:
        return {"normalizer": normalizer(space_prefix=False), **stages}
    scheme = "always" if settings.legacy else "first"
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    return {"normalizer": None, **stages, "pre_tokenizer": metaspace}


def _tiktoken_ranks(content: bytes, place: Path) -> dict[bytes, int] | None:
    """The ranks by token of a tiktoken file, which has one in base64 a line; None for another kind of file.

    Raises:
        ConfigError: a line after the first is damaged.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            if not ranks:
                return None
            raise ConfigError(f"{place} is damaged: line {number} has no token in base64 and its rank") from error
    return ranks or None


def _tiktoken(ranks: Mapping[bytes, int]) -> _Vocabulary:
    spelling = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}
    ids = {"".join(map(spelling.__getitem__, token)): rank for token, rank in ranks.items()}
    tokens = sorted(ids, key=ids.__getitem__)
    merges = score_merges(tokens, range(len(tokens), 0, -1), ids)
    return _Vocabulary(byte_level_stages(ids, merges, TIKTOKEN), ids)


def _byte_level(folder: VocabularyFolder, name: str) -> _Vocabulary:
    try:
        ids = msgspec.json.decode(folder.files["vocab.json"], type=dict[str, int])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{folder.path}/vocab.json is damaged: {error}") from error
    lines = folder.files["merges.txt"].decode(errors="replace").split("\n")
    merges = [tuple(line.rstrip("\r").split(" ")) for line in lines if line.strip() and not line.startswith("#version")]
    for pair in merges:
        if len(pair) != 2 or any(token not in ids for token in (*pair, "".join(pair))):
            raise ConfigError(f"{folder.path}/merges.txt merges {' '.join(pair)!r}, which are not all in vocab.json")
    pre_tokenizer = TOKENIZER_CLASSES[name]
    if folder.settings.add_prefix_space:
        pre_tokenizer = _with_prefix(pre_tokenizer)
    bos_token = "" if name == "Qwen2Tokenizer" else _END_OF_TEXT
    added = (added_token(ids[_END_OF_TEXT], _END_OF_TEXT, special=True),) if _END_OF_TEXT in ids else ()
    return _Vocabulary(byte_level_stages(ids, merges, pre_tokenizer), ids, bos_token, _END_OF_TEXT, added)


def _with_prefix(pre_tokenizer: PreTokenizer) -> PreTokenizer:
    """A copy that puts a space before each text."""
    *splits, last = pre_tokenizer.pre_tokenizers
    return msgspec.structs.replace(pre_tokenizer, pre_tokenizers=(*splits, {**last, "add_prefix_space": True}))
