"""Selects the files of a repository that a model needs. Knows only names: downloads nothing, reads no model."""

import logging
import re
from collections.abc import Callable, Iterable, Sequence, Set
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from pyllm.checkpoint.gguf_header import part_names
from pyllm.checkpoint.json_files import read_json
from pyllm.checkpoint.model_name import HubName, is_within
from pyllm.checkpoint.pooling.classifier_head import CROSS_ENCODER_CONFIG
from pyllm.checkpoint.pooling.embedding_config import SENTENCE_BERT_CONFIG
from pyllm.checkpoint.vocabularies.folder_tokenizer import VOCABULARY_FILES
from pyllm.errors import ConfigError

logger = logging.getLogger(__name__)

INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
_TOKENIZER = (
    *("config.json", "generation_config.json", "tokenizer*.json", "added_tokens.json", "special_tokens_map.json"),
    *("*chat_template*", "additional_chat_templates/*.jinja"),
)
# Files beside the weights: those that the readers read, and those of embedding models and rerankers.
_DESCRIPTIONS = (
    *(*_TOKENIZER, INDEX, "modules.json", SENTENCE_BERT_CONFIG, CROSS_ENCODER_CONFIG),
    *("*_Pooling/config.json", "*_LogitScore/config.json", "*_Dense/config.json", f"*_Dense/{WEIGHTS}"),
)
# Quantizations that llama.cpp prefers where none is asked for, and name parts of GGUF files that are no models.
_PREFERRED = ("Q4_K_M", "Q8_0")
_NO_MODELS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
PICKLED = {".bin", ".pth", ".pt"}
CONVERT = (
    "a pickle may run code when it is read; convert it with transformers' `from_pretrained` and `save_pretrained`, or "
    "at https://huggingface.co/spaces/safetensors/convert"
)
# Beginnings of files that are no model: adapters, weights in Mistral's own layout, hidden files of macOS.
_NOT_ALONE = ("adapter_model", "consolidated", ".")
_SHARD = re.compile(r"(.*)-(\d{1,6})-of-(\d{1,6})\.safetensors")
_MOST_PARTS = 10_000
_WEIGHTS = {".safetensors", ".onnx"} | PICKLED
_QUANTIZATION = re.compile(r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|MXFP4\w*|BF16|F16|F32))(?=[-./])", re.IGNORECASE)


def collect(name: HubName, names: Iterable[str], get: Callable[[str], Path]) -> Path:
    """Get every file that the model needs, weights last; returns its GGUF file, or its folder.

    `names` are the repository's files; `get` returns the path of one.

    Raises:
        ConfigError: there are no readable weights, or several match the name.
    """
    names = [file for file in names if is_within(file)]
    is_named = bool({INDEX, WEIGHTS} & set(names))
    is_other = bool(models_alone(names)) and not gguf_models(names)
    has_safetensors = "config.json" in names and (is_named or is_other)
    if name.file or name.quantization or not has_safetensors:
        return _get_gguf(choose_gguf(name, names), get)
    _get_all(names, (*_DESCRIPTIONS, *_vocabulary(names)), get)
    for file in choose_safetensors(name.repository, names, shards(get(INDEX)) if INDEX in names else []):
        get(file)
    return get("config.json").parent


def collect_tokenizer(name: HubName, names: Iterable[str], get: Callable[[str], Path]) -> Path:
    """Get only the files of a model's tokenizer; returns their folder, or the GGUF file that has it. See `collect`.

    Raises:
        ConfigError: there is neither a tokenizer.json, nor exactly one matching GGUF file, nor another vocabulary.
    """
    names = [file for file in names if is_within(file)]
    own = ["tokenizer.json"] if "tokenizer.json" in names else () if gguf_models(names) else _vocabulary(names)
    if name.file or name.quantization or not own:
        return _get_gguf(choose_gguf(name, names), get)
    _get_all(names, (*_TOKENIZER, *own), get)
    return get(own[0]).parent


def choose_gguf(name: HubName, names: Iterable[str]) -> str:
    """The GGUF model that a name means: its file, or the first of its parts.

    Raises:
        ConfigError: there is none, or a part is missing; the text names the files that exist.
    """
    names = list(names)
    models = gguf_models(names)
    if not models:
        weights = sorted(file for file in names if Path(file).suffix in _WEIGHTS)
        found = f"it has {_some(weights)}" if weights else "it has no weights"
        wanted = "no GGUF file" if name.quantization or name.file else f"neither {WEIGHTS} nor a GGUF file"
        is_pickled = any(Path(file).suffix in PICKLED for file in weights)
        hint = CONVERT if is_pickled else "name a repository with such files"
        raise ConfigError(f"{name.repository} has {wanted}: {found}; {hint}")
    if name.file:
        chosen = [file for file in models if file.lower() == part_names(name.file)[0].lower()]
    elif name.quantization:
        chosen = _of_quantization(models, name.quantization)
    else:
        whole = [file for file in models if len(part_names(file)) == 1] or models
        chosen = next(filter(None, (_of_quantization(whole, choice) for choice in _PREFERRED)), whole)
    if not chosen:
        known = sorted({quantization_of(file) or file for file in models})
        raise ConfigError(f"{name.repository} has no {name.file or name.quantization}; it has {_some(known)}")
    # Q4_K_M also matches UD-Q4_K_M: take the shortest name.
    file = min(chosen, key=lambda file: (len(file), file)) if name.quantization else chosen[0]
    if missing := sorted(set(part_names(file)) - set(names)):
        raise ConfigError(f"{name.repository}: {file} is one of several parts, of which {_some(missing)} are missing")
    return file


def shards(index: Path) -> list[str]:
    """The safetensors files that an index names, all in its folder, sorted; empty if the index cannot be read.

    Raises:
        ConfigError: it names a file in another folder.
    """
    try:
        weight_map = read_json(index, _Index).weight_map
    except ConfigError as error:
        logger.warning("%s: the names of the files decide", error)
        return []
    files = sorted(set(weight_map.values()))
    for shard in files:
        if "/" in shard or not is_within(shard) or not shard.endswith(".safetensors"):
            raise ConfigError(f"{index} is damaged: {shard!r} is no safetensors file beside it")
    return files


def choose_safetensors(place: str, names: Iterable[str], indexed: Sequence[str]) -> list[str]:
    """The weights of a model: the files in its index; else one whole file, all parts of one set, or any other files.

    `names` are the files at the `place`, `indexed` those of the index, which may be outdated or lack parts of a set.

    Raises:
        ConfigError: a part is missing, or there are no readable weights; the text names the files that exist.
    """
    files = {file for file in names if "/" not in file}
    if indexed and set(indexed) <= files:
        parts = safetensors_parts(indexed[0])
        return parts if set(indexed) < set(parts) <= files else list(indexed)
    if WEIGHTS in files:
        return [WEIGHTS]
    others = {file: safetensors_parts(file) for file in models_alone(files) if file not in indexed}
    sets = [parts for parts in others.values() if len(parts) > 1]
    if whole := [parts for parts in sets if files.issuperset(parts)]:
        return whole[0]
    if others and not sets and files.isdisjoint(indexed):
        return list(others)
    raise _no_weights(place, files, indexed, sets)


def _no_weights(place: str, files: Set[str], indexed: Sequence[str], sets: Iterable[Sequence[str]]) -> ConfigError:
    """The error where neither the index nor a set is whole: the missing parts, or weights in other formats."""
    if missing := sorted({part for parts in (indexed, *sets) for part in parts} - files):
        named = f"{INDEX} names" if set(missing) & set(indexed) else "it lacks"
        found = models_alone(files)
        there = f"it has {_some(found)}" if found else "it has no safetensors file"
        return ConfigError(f"{place}: {named} {_some(missing)}, and {there}: download what is missing")
    weights = sorted(file for file in files if Path(file).suffix in _WEIGHTS)
    is_pickled = any(Path(file).suffix in PICKLED for file in weights)
    convert = f", and not from {_some(weights)}{f': {CONVERT}' if is_pickled else ''}" if weights else ""
    return ConfigError(f"{place} has no {WEIGHTS}; weights are read from safetensors files only{convert}")


def models_alone(names: Iterable[str]) -> list[str]:
    """The safetensors files that could be a model or a part of one, sorted."""
    files = (file for file in names if file.endswith(".safetensors") and "/" not in file)
    return sorted(file for file in files if not file.startswith(_NOT_ALONE))


def safetensors_parts(name: str) -> list[str]:
    """The names of all parts of the model that `name` is a part of; for any other file, `name` alone."""
    found = _SHARD.fullmatch(name)
    if found is None:
        return [name]
    stem, number, total = found[1], found[2], min(int(found[3]), _MOST_PARTS)
    return [f"{stem}-{part:0{len(number)}}-of-{found[3]}.safetensors" for part in range(1, total + 1)]


def gguf_models(names: Iterable[str]) -> list[str]:
    """The GGUF files that are language models, sorted; for a split model, its first part."""
    files = {part_names(file)[0] for file in names if file.lower().endswith(".gguf") and is_within(file)}
    names = {file: Path(file).name.lower() for file in files}
    return sorted(
        file for file, name in names.items() if name[0] != "." and not any(part in name for part in _NO_MODELS)
    )


def quantization_of(file: str) -> str:
    """The quantization in the name of a GGUF file, such as `Q4_K_M`; empty where it has none."""
    found = _QUANTIZATION.findall(file)
    return found[-1].upper() if found else ""


def _get_gguf(file: str, get: Callable[[str], Path]) -> Path:
    first, *rest = part_names(file)
    path = get(first)
    for part in rest:
        get(part)
    return path


def _of_quantization(files: Iterable[str], quantization: str) -> list[str]:
    pattern = re.compile(rf"(?<![A-Za-z0-9]){re.escape(quantization)}[-./]", re.IGNORECASE)
    return [file for file in files if pattern.search(file)]


def _vocabulary(names: Sequence[str]) -> list[str]:
    """The files of which a tokenizer.json is built where there is none."""
    return [] if "tokenizer.json" in names else [file for file in VOCABULARY_FILES if file in names]


def _get_all(names: Iterable[str], patterns: Iterable[str], get: Callable[[str], Path]) -> None:
    for file in names:
        if any(fnmatchcase(file, pattern) and file.count("/") == pattern.count("/") for pattern in patterns):
            get(file)


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _some(files: list[str], most: int = 20) -> str:
    return ", ".join(files[:most]) + (f" and {len(files) - most} more" if len(files) > most else "")
