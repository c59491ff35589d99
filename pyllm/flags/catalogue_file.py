"""Reads a catalogue of models: from a YAML file with flags of each, from a folder, or from a command line's names.

Opens no model. `docs/catalogue.md` has the file's format.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pyllm.checkpoint.model_name import find_short_name
from pyllm.config.catalogue_settings import (
    SERVER_OPTIONS,
    CatalogueEntry,
    CatalogueModels,
    Name,
    Shares,
    check_aliases,
    split_options,
)
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import ConfigError
from pyllm.flags.command_line import as_arguments, yaml_problem
from pyllm.flags.settings_flags import (
    SettingsParser,
    add_engine_settings,
    add_settings,
    add_vllm_flags,
    given_settings,
)
from pyllm.flags.vllm_settings import settle

# Later files of a GGUF in several parts, and projectors of images: no models of their own.
_NO_MODEL = re.compile(r"(?:-(?!00001)\d{5}-of-\d{5}|^mmproj.*)\.gguf$")
_FIRST_PART = re.compile(r"-00001-of-\d{5}$")
_TERMS = frozenset({"pinned", "ttl", "tenants"})
# What a model is and can do depends on these, beside its files.
_DESCRIBING = frozenset(
    {
        *("tokenizer", "model_impl", "hf_overrides", "chat_template", "tool_call_parser", "reasoning_parser"),
        *("generation_config", "override_generation_config", "revision", "load_format"),
    }
)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: dict[Name, Any]
    aliases: dict[Name, str | Shares] = {}


def read_catalogue(path: Path, shared: Mapping[str, Any]) -> CatalogueModels:
    """The catalogue of a YAML file or a folder. `shared` are options of every model, which its own replace.

    Exits with 2, as a command line does, where a model has a wrong flag.

    Raises:
        ConfigError: it cannot be read, has no models, or an option is out of its range.
    """
    return _of_folder(path, shared) if path.is_dir() else _of_file(path, shared)


def catalogue_of(models: Sequence[str], shared: Mapping[str, Any]) -> CatalogueModels:
    """The catalogue of models that a command line names.

    Raises:
        ConfigError: one of them can be no model, or two have one name.
    """
    named: dict[str, Any] = {}
    for model in models:
        if "/" not in model and not Path(model).exists() and find_short_name(model) is None:
            raise ConfigError(f"there is no model {model}: give GGUF files, folders, or owner/repo of the hub")
        name = model_name(model)
        if name in named:
            raise ConfigError(
                f"{named[name]['model']} and {model} have one name, {name}: give names in a file, --models"
            )
        named[name] = {"model": model}
    return _catalogue("the command line", named, {}, shared)


def model_name(model: str) -> str:
    """The name in requests of a file or folder, without folders and suffix; a name of the hub stays as it is."""
    path = Path(model)
    if path.suffix == ".gguf" or path.exists():
        return _FIRST_PART.sub("", path.absolute().name.removesuffix(".gguf"))
    return model


def _of_folder(path: Path, shared: Mapping[str, Any]) -> CatalogueModels:
    found = [
        each
        for each in sorted(path.iterdir())
        if (each.suffix == ".gguf" and not _NO_MODEL.search(each.name)) or (each / "config.json").is_file()
    ]
    return _catalogue(f"--models {path}", {model_name(str(each)): {"model": str(each)} for each in found}, {}, shared)


def _of_file(path: Path, shared: Mapping[str, Any]) -> CatalogueModels:
    import yaml

    try:
        file = msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), _File)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --models {path}: {getattr(error, 'strerror', None) or error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"--models {path} is not YAML: {yaml_problem(error)}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"--models {path}: {error}") from None
    named = {name: _flags_of(path, name, value) for name, value in file.models.items()}
    for flags in named.values():
        if isinstance(model := flags.get("model"), str) and (local := path.parent / model).exists():
            flags["model"] = str(local.absolute())
    aliases = {alias: {to: 1.0} if isinstance(to, str) else dict(to) for alias, to in file.aliases.items()}
    return _catalogue(f"--models {path}", named, aliases, shared)


def _flags_of(path: Path, name: str, value: Any) -> dict[str, Any]:
    """The flags of one model; a text alone is the model, and without one its name is."""
    if value is None or isinstance(value, str):
        return {"model": value or name}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"--models {path}: {name} must be a model, or flags and values such as `model: FILE`")
    return {"model": name, **value}


def _catalogue(
    source: str, named: Mapping[str, dict[str, Any]], aliases: dict[str, Shares], shared: Mapping[str, Any]
) -> CatalogueModels:
    if not named:
        raise ConfigError(f"{source} has no models")
    parser = SettingsParser(prog="pyllm serve")
    add_engine_settings(parser)
    add_settings(parser, ServerConfig, SERVER_OPTIONS)
    add_vllm_flags(parser)
    entries, options = [], {}
    for name, flags in named.items():
        parser.source = f"{source}: {name}"
        read = parser.read(as_arguments({flag: value for flag, value in flags.items() if flag not in _TERMS}))
        try:
            settle(read)
            terms = {key: flags[key] for key in flags.keys() & _TERMS}
            given = given_settings(read) | given_settings(read, ServerConfig)
            options[name] = {**shared, **given, "served_model_name": (name,)}
            files = None if options[name].keys() & _DESCRIBING else options[name].get("model")
            described = {"name": name, "files": files, "max_model_len": options[name].get("max_model_len")}
            entries.append(msgspec.convert({**described, **terms}, CatalogueEntry))
            split_options(options[name])
        except (ConfigError, msgspec.ValidationError) as error:
            raise ConfigError(f"{source}: {name}: {error}") from None
    check_aliases(aliases, named)
    return CatalogueModels(entries=tuple(entries), options=options, aliases=aliases)
