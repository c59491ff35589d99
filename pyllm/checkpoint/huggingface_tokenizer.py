"""Reads the tokenizer of a Hugging Face folder: its tokens, which of them are special, and the chat templates.

Tokens that only tokenizer_config.json, added_tokens.json or special_tokens_map.json name are added to a copy of
tokenizer.json, as transformers adds them when it starts. Knows no weights.
"""

import codecs
import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pyllm.checkpoint.cache import CacheError, cache_folder, temporary_folder, write_file
from pyllm.checkpoint.json_files import read_json
from pyllm.checkpoint.types import TokenizerFiles
from pyllm.errors import ConfigError

logger = logging.getLogger(__name__)

# Ids that may be skipped between the tokens of a vocabulary and those that are added behind them.
_LARGEST_GAP = 1 << 16


class _Token(msgspec.Struct):
    """A token as added_tokens_decoder has it, with the defaults of tokenizers."""

    content: str = ""
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _SpecialTokens(msgspec.Struct):
    """What special_tokens_map.json says, and tokenizer_config.json too. Of the others only texts are looked at."""

    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None
    unk_token: Any = None
    sep_token: Any = None
    pad_token: Any = None
    cls_token: Any = None
    mask_token: Any = None
    additional_special_tokens: Any = None


class _TokenizerConfig(_SpecialTokens):
    added_tokens_decoder: dict[int, _Token] | None = None
    chat_template: str | list[_NamedTemplate] | None = None


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _TokenizerModel(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]

    def ids(self) -> dict[str, int]:
        """The id of each token."""
        if isinstance(self.vocab, dict):
            return self.vocab
        return {token: index for index, (token, _) in enumerate(self.vocab)}


class _TokenizerJson(msgspec.Struct):
    model: _TokenizerModel
    added_tokens: list[_AddedToken] = []


def read_huggingface_tokenizer(folder: Path) -> TokenizerFiles:
    """The tokenizer in such a folder, with its chat template.

    Raises:
        ConfigError: a file is missing or damaged.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"{folder} has no tokenizer.json; transformers' `save_pretrained` writes one")
    document = read_json(path, _TokenizerJson)
    options = read_json(folder / "tokenizer_config.json", _TokenizerConfig, optional=True)
    special = _special_tokens(folder, options)
    vocabulary = document.model.ids()
    ids = vocabulary | {token.content: token.id for token in document.added_tokens}
    if missing := _missing_tokens(folder, document, vocabulary, _declared_tokens(folder, options, special)):
        path = _with_tokens(path, missing)
        ids |= {token.content: index for index, token in missing.items()}
    eos_token = _text(special.eos_token)
    return TokenizerFiles(
        path=str(path),
        chat_template=_chat_template(folder, options),
        tool_chat_template=_tool_chat_template(folder, options),
        bos_token=_text(special.bos_token),
        eos_token=eos_token,
        eos_token_ids=(ids[eos_token],) if eos_token in ids else (),
        num_tokens=max(vocabulary.values(), default=-1) + 1,
    )


def _special_tokens(folder: Path, options: _TokenizerConfig) -> _SpecialTokens:
    """As transformers: special_tokens_map.json wins where there is no added_tokens_decoder; else it fills gaps."""
    mapped = read_json(folder / "special_tokens_map.json", _SpecialTokens, optional=True)
    first, second = (mapped, options) if options.added_tokens_decoder is None else (options, mapped)
    values = ((name, getattr(first, name), getattr(second, name)) for name in mapped.__struct_fields__)
    return _SpecialTokens(**{name: other if value is None else value for name, value, other in values})


def _declared_tokens(folder: Path, options: _TokenizerConfig, special: _SpecialTokens) -> dict[int, _Token]:
    """The tokens that the files beside tokenizer.json name, by their ids; those without one have -1, -2 and so on."""
    names = [_text(getattr(special, name)) for name in special.__struct_fields__[:-1]]
    more = special.additional_special_tokens
    names += [_text(each) for each in (more if isinstance(more, list) else [])]
    declared = dict(options.added_tokens_decoder or {})
    for name, index in read_json(folder / "added_tokens.json", dict[str, int], optional=True).items():
        is_special = name in names
        declared.setdefault(index, _Token(name, special=is_special, normalized=not is_special))
    found = {token.content for token in declared.values()}
    without_id = dict.fromkeys(name for name in names if name and name not in found)
    return declared | {
        -number: _Token(name, special=True, normalized=False) for number, name in enumerate(without_id, start=1)
    }


def _missing_tokens(
    folder: Path, document: _TokenizerJson, vocabulary: Mapping[str, int], declared: Mapping[int, _Token]
) -> dict[int, _Token]:
    """Of these the ones that tokenizer.json does not have as added tokens, by the ids that they get.

    `tokenizers` numbers what it adds from the end of the vocabulary on, so tokens of ids between are made up.
    """
    known = {token.content for token in document.added_tokens}
    taken = {token.id: token.content for token in document.added_tokens}
    by_id = {index: token for token, index in vocabulary.items()} if declared else {}
    following = max(len(vocabulary), max(taken, default=-1) + 1)
    missing: dict[int, _Token] = {}
    for index, token in sorted(declared.items()):
        name = token.content
        if not name or name in known:
            continue
        if name in vocabulary:
            if 0 <= index != vocabulary[name]:
                logger.warning("%s: %r is token %d in tokenizer.json, not %d", folder, name, vocabulary[name], index)
            missing[vocabulary[name]] = token
        elif index >= 0 and (other := taken.get(index, by_id.get(index))) is not None:
            logger.warning("%s: %r would be token %d, which is %r in tokenizer.json", folder, name, index, other)
        elif following <= index <= following + _LARGEST_GAP:
            for between in range(following, index):
                missing[between] = _Token(f"<|reserved_token_{between}|>", special=True, normalized=False)
            missing[index], following = token, index + 1
        elif index >= 0:
            logger.warning("%s: %r cannot be token %d: tokenizer.json ends at %d", folder, name, index, following)
    return missing


def _with_tokens(path: Path, missing: Mapping[int, _Token]) -> Path:
    """A copy of a tokenizer.json in the cache folder, with more added tokens."""
    content = path.read_bytes()
    document = msgspec.json.decode(content)
    entries = [{"id": index, **msgspec.structs.asdict(token)} for index, token in sorted(missing.items())]
    document["added_tokens"] = [*(document.get("added_tokens") or []), *entries]
    listed = ", ".join(repr(token.content) for token in missing.values())
    logger.info("%s lacks %d tokens that the files beside it name, and gets them: %.300s", path, len(missing), listed)
    key = hashlib.blake2b(content + repr(entries).encode(), digest_size=16).hexdigest()
    try:
        return _written(cache_folder() / f"{key}.tokenizer.json", document)
    except CacheError as error:
        logger.warning("the tokenizer is not kept: %s", error)
        return _written(temporary_folder() / "tokenizer.json", document)


def _written(path: Path, document: Any) -> Path:
    if not path.is_file():
        write_file(path, msgspec.json.encode(document))
    return path


def _chat_template(folder: Path, options: _TokenizerConfig) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return _template_text(file)
    template = options.chat_template
    if isinstance(template, list):  # Several named ones: the one that transformers takes, too.
        return next((named.template for named in template if named.name == "default"), None)
    return template


def _tool_chat_template(folder: Path, options: _TokenizerConfig) -> str | None:
    file = folder / "additional_chat_templates/tool_use.jinja"
    if file.is_file():
        return _template_text(file)
    named = options.chat_template if isinstance(options.chat_template, list) else []
    return next((each.template for each in named if each.name == "tool_use"), None)


def _template_text(file: Path) -> str:
    """With characters that are none replaced: a template may be of use although its author's name is not."""
    content = file.read_bytes()
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        logger.warning("%s is not UTF-8 at byte %d: what is none is replaced; save it as UTF-8", file, error.start)
        return content.decode(encoding, errors="replace")


def _text(token: Any) -> str:
    """The text of a token that a file has as a text, or with its properties."""
    if isinstance(token, dict):
        token = token.get("content")
    return token.content if isinstance(token, _Token) else token if isinstance(token, str) else ""
