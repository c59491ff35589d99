"""Reads the tokenizer of a Hugging Face folder: its tokens, special tokens and chat templates.

Tokens that only tokenizer_config.json, added_tokens.json or special_tokens_map.json name, or mark as special, are
added to a copy of tokenizer.json, as transformers 5 adds them when it loads a tokenizer. Knows no weights.
"""

import codecs
import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pyllm.checkpoint import vocabularies
from pyllm.checkpoint.cache import CacheError, cache_folder, temporary_folder, write_file
from pyllm.checkpoint.json_files import read_json, refuse_pointer
from pyllm.checkpoint.pooling.embedding_config import SENTENCE_BERT_CONFIG, TransformerConfig
from pyllm.checkpoint.types import TokenizerFiles
from pyllm.checkpoint.vocabularies.folder_tokenizer import (
    VOCABULARY_FILES,
    TokenizerSettings,
    VocabularyFolder,
    build_tokenizer,
)
from pyllm.errors import ConfigError

logger = logging.getLogger(__name__)

# Most ids that may be unused between the vocabulary and the tokens added after it.
_LARGEST_GAP = 1 << 16
_STANDARD = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class _Token(msgspec.Struct):
    """A token in the form of added_tokens_decoder, with the defaults of `tokenizers`."""

    content: str = ""
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _ProcessorTemplate(msgspec.Struct):
    chat_template: str | list[_NamedTemplate] | None = None


class _TokenizerConfig(_ProcessorTemplate):
    added_tokens_decoder: dict[int, dict[str, Any]] | None = None

    def decoder(self) -> dict[int, _Token]:
        """The added tokens by id; as in `tokenizers`, a token whose content is null has an empty one."""
        given = (self.added_tokens_decoder or {}).items()
        return {
            index: msgspec.convert(token | {"content": token.get("content") or ""}, _Token) for index, token in given
        }


class _SpecialTokens(NamedTuple):
    """Special tokens: `named` by fields of their own, such as eos_token or image_token, and `listed` in lists."""

    named: dict[str, _Token]
    listed: list[_Token]


class _AddedToken(_Token, kw_only=True):
    id: int


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


class _ModelFields(msgspec.Struct):
    """The kind of a model, and the fields that give the rows of its embedding, of which `text_config` has priority."""

    model_type: str | None = None
    vocab_size: int | None = None
    text_config: "_ModelFields | None" = None

    def num_rows(self) -> int:
        return (self.text_config.num_rows() if self.text_config else 0) or self.vocab_size or 0


def read_huggingface_tokenizer(folder: Path) -> TokenizerFiles:
    """The tokenizer in a Hugging Face folder, with its chat template.

    Raises:
        ConfigError: a file is missing or damaged.
    """
    path = folder / "tokenizer.json"
    options = read_json(folder / "tokenizer_config.json", _TokenizerConfig, optional=True)
    special = _special_tokens(folder, options)
    if not path.is_file():
        path, special = _build(folder, options, special)
    document = read_json(path, _TokenizerJson)
    vocabulary = document.model.ids()
    ids = vocabulary | {token.content: token.id for token in document.added_tokens}
    added = _changed_tokens(document, options.decoder(), special)
    added |= _missing_tokens(folder, document, vocabulary, _declared_tokens(folder, options, special))
    if added:
        path = _with_tokens(path, added)
        ids |= {token.content: index for index, token in added.items()}
    bos_token, eos_token = (special.named[name].content for name in ("bos_token", "eos_token"))
    ends = (ids[eos_token],) if eos_token and eos_token in ids else ()
    chat_template, tool_chat_template = _chat_templates(folder, options)
    return TokenizerFiles(
        path=str(path),
        chat_template=chat_template,
        tool_chat_template=tool_chat_template,
        bos_token=bos_token,
        eos_token=eos_token,
        eos_token_ids=ends,
        own_ends=ends,
        num_tokens=max(vocabulary.values(), default=-1) + 1,
    )


def read_vocabulary(files: TokenizerFiles) -> dict[str, int]:
    """The id of each token, also of added ones.

    Raises:
        ConfigError: the file is damaged.
    """
    document = read_json(Path(files.path), _TokenizerJson)
    return document.model.ids() | {token.content: token.id for token in document.added_tokens}


def _build(folder: Path, options: _TokenizerConfig, special: _SpecialTokens) -> tuple[Path, _SpecialTokens]:
    """A tokenizer.json in the cache folder, made of the folder's vocabulary, and the special tokens with its own."""
    vocabulary = VocabularyFolder(
        folder,
        {name: _content(folder / name) for name in VOCABULARY_FILES if (folder / name).is_file()},
        read_json(folder / "tokenizer_config.json", TokenizerSettings, optional=True),
        read_json(folder / "config.json", _ModelFields, optional=True).model_type or "",
    )
    names = {name: token.content for name, token in special.named.items()}
    added = {token.content: index for index, token in options.decoder().items()}
    path, own = _cached_build(vocabulary, names, added)
    named = special.named | {name: _token(token) for name, token in own.items() if not names[name]}
    return path, special._replace(named=named)


def _cached_build(
    vocabulary: VocabularyFolder, names: Mapping[str, str], added: Mapping[str, int]
) -> tuple[Path, dict[str, str]]:
    """The path of the tokenizer.json, and its BOS and EOS tokens; built once, as 256,000 tokens take some seconds."""
    key = hashlib.blake2b(repr((vocabulary, names, added)).encode(), digest_size=16)
    for module in sorted(Path(vocabularies.__file__).parent.glob("*.py")):  # An edit of the code makes it outdated.
        key.update(module.read_bytes())
    with suppress(CacheError, OSError, msgspec.DecodeError):
        entry, kept = (cache_folder() / f"{key.hexdigest()}.{kind}" for kind in ("ends.json", "tokenizer.json"))
        own = msgspec.json.decode(entry.read_bytes(), type=dict[str, str])
        if kept.is_file():
            return kept, own
    built = build_tokenizer(vocabulary, names, added)
    own = {"bos_token": built.bos_token, "eos_token": built.eos_token}
    path = _keep(built.content, key)
    with suppress(CacheError):
        write_file(cache_folder() / f"{key.hexdigest()}.ends.json", msgspec.json.encode(own))
    return path, own


def _special_tokens(folder: Path, options: _TokenizerConfig) -> _SpecialTokens:
    """The special tokens, by the rule of transformers.

    special_tokens_map.json wins where there is no added_tokens_decoder; otherwise it only adds missing ones.
    """
    files = [folder / name for name in ("tokenizer_config.json", "special_tokens_map.json")]
    first, second = (read_json(file, dict[str, Any], optional=True) for file in files)
    if options.added_tokens_decoder is None:
        first, second = second, first
    fields = second | {name: value for name, value in first.items() if value is not None}
    lists = [fields.get(name) for name in ("additional_special_tokens", "extra_special_tokens")]
    named = {name: value for name, value in fields.items() if name.endswith("_token")}
    for section in (fields.get("model_specific_special_tokens"), *lists):
        named |= section if isinstance(section, dict) else {}
    tokens = {name: _token(value) for name, value in (dict.fromkeys(_STANDARD) | named).items()}
    return _SpecialTokens(tokens, [_token(each) for given in lists if isinstance(given, list) for each in given])


def _declared_tokens(folder: Path, options: _TokenizerConfig, special: _SpecialTokens) -> dict[int, _Token]:
    """The tokens in the files beside tokenizer.json, by id; tokens without an id have -1, -2 and so on."""
    by_name = {token.content: token for token in (*special.named.values(), *special.listed) if token.content}
    declared = options.decoder()
    for name, number in read_json(folder / "added_tokens.json", dict[str, float], optional=True).items():
        if not number.is_integer():
            raise ConfigError(f"{folder}/added_tokens.json gives {name!r} the id {number}, which is no whole number")
        is_special = name in by_name
        declared.setdefault(int(number), _Token(name, special=is_special, normalized=not is_special))
    found = {token.content for token in declared.values()}
    without_id = [token for name, token in by_name.items() if name not in found]
    return declared | {-number: token for number, token in enumerate(without_id, start=1)}


def _changed_tokens(
    document: _TokenizerJson, decoder: Mapping[int, _Token], special: _SpecialTokens
) -> dict[int, _Token]:
    """The added tokens of tokenizer.json that other files change, by id, in their new form.

    As in transformers, added_tokens_decoder gives the properties by which they are matched in a text, and tokens
    named by a field are special.
    """
    names = {token.content for token in special.named.values()}
    changed: dict[int, _Token] = {}
    for own in document.added_tokens:
        was = _Token(**{name: getattr(own, name) for name in _Token.__struct_fields__})
        other = decoder.get(own.id, was)
        token = other if other.content == own.content else was
        is_special = was.special or token.special or own.content in names
        if (token := msgspec.structs.replace(token, special=is_special)) != was:
            changed[own.id] = token
    return changed


def _missing_tokens(
    folder: Path, document: _TokenizerJson, vocabulary: Mapping[str, int], declared: Mapping[int, _Token]
) -> dict[int, _Token]:
    """The declared tokens that are not among the added tokens of tokenizer.json, by the ids that they get.

    `tokenizers` numbers added tokens from the end of the vocabulary on, so placeholder tokens fill unused ids. Tokens
    without an id come last, as far as the embedding has rows.
    """
    rows = read_json(folder / "config.json", _ModelFields, optional=True).num_rows()
    known = {token.content for token in document.added_tokens}
    taken = {token.id: token.content for token in document.added_tokens}
    by_id = {index: token for token, index in vocabulary.items()} if declared else {}
    following = max(len(vocabulary), max(taken, default=-1) + 1)
    missing: dict[int, _Token] = {}
    homeless: list[str] = []
    for index, token in sorted(declared.items(), key=lambda item: (item[0] < 0, abs(item[0]))):
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
        elif not rows or following < rows:
            missing[following], following = token, following + 1
        else:
            homeless.append(name)
    if homeless:
        logger.warning(
            "%s: the special tokens %s are not in the vocabulary, and the embedding's %d rows have no room for them",
            *(folder, ", ".join(homeless), rows),
        )
    return missing


def _with_tokens(path: Path, added: Mapping[int, _Token]) -> Path:
    """A copy of a tokenizer.json in the cache folder, with these added tokens, which replace those of the same ids."""
    content = path.read_bytes()
    document = msgspec.json.decode(content)
    entries = [{"id": index, **msgspec.structs.asdict(token)} for index, token in sorted(added.items())]
    kept = [token for token in document.get("added_tokens") or [] if token["id"] not in added]
    document["added_tokens"] = sorted([*kept, *entries], key=lambda token: token["id"])
    listed = ", ".join(repr(token.content) for token in added.values())
    logger.info("%s: %d tokens are those of the files beside it: %.300s", path, len(added), listed)
    return _keep(msgspec.json.encode(document), hashlib.blake2b(content + repr(entries).encode(), digest_size=16))


def _keep(content: bytes, key: hashlib.blake2b) -> Path:
    """The path of a tokenizer.json in the cache folder, else in a temporary one; it is written if it is not there."""
    try:
        path = cache_folder() / f"{key.hexdigest()}.tokenizer.json"
        if not path.is_file():
            write_file(path, content)
    except CacheError as error:
        logger.warning("the tokenizer is not kept: %s", error)
        path = temporary_folder() / "tokenizer.json"
        write_file(path, content)
    return path


def _chat_templates(folder: Path, options: _TokenizerConfig) -> tuple[str | None, str | None]:
    """The chat template, and the one for requests with tools, as transformers takes them.

    Files of their own replace those of tokenizer_config.json; chat_template.json is what earlier processors saved. A
    reranker may name another template than the default one.
    """
    transformer = read_json(folder / SENTENCE_BERT_CONFIG, TransformerConfig, optional=True)
    name = transformer.processing_kwargs.chat_template.get("chat_template")
    file, tool_file = (
        folder / ("chat_template.jinja" if each == "default" else f"additional_chat_templates/{each}.jinja")
        for each in (name or "default", "tool_use")
    )
    given = options.chat_template
    if given is None and not file.is_file():
        given = read_json(folder / "chat_template.json", _ProcessorTemplate, optional=True).chat_template
    several = [_NamedTemplate("default", given)] if isinstance(given, str) else given or ()
    named = {each.name: each.template for each in several}
    return (
        _template_text(file) if file.is_file() else named.get(name or "default"),
        _template_text(tool_file) if tool_file.is_file() else named.get("tool_use"),
    )


def _template_text(file: Path) -> str:
    """The text of a template. Invalid characters are replaced, since the template may still be usable."""
    content = _content(file)
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        logger.warning("%s is not UTF-8 at byte %d: invalid bytes were replaced; save it as UTF-8", file, error.start)
        return content.decode(encoding, errors="replace")


def _content(file: Path) -> bytes:
    content = file.read_bytes()
    refuse_pointer(file, content)
    return content


def _token(value: Any) -> _Token:
    """A special token from a text or an object with properties; for any other value, one with an empty text."""
    try:
        return msgspec.structs.replace(msgspec.convert(value, _Token), special=True)
    except msgspec.ValidationError:
        return _Token(value if isinstance(value, str) else "", special=True, normalized=False)
