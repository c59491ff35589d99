"""A catalogue: the models that one server loads when requests name them, as a file or a folder describes them.

Opens no model. `docs/catalogue.md` has the file's format.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pyllm.config.nearest_name import nearest_name
from pyllm.config.option_fields import ConfigPart, TextForm
from pyllm.config.option_reading import config_part, engine_config, option_names
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import ConfigError

# Settings of the server that a model may have for itself.
SERVER_OPTIONS = frozenset(
    {
        *("tool_call_parser", "reasoning_parser", "default_chat_template_kwargs", "response_role"),
        *("trust_request_chat_template", "enable_force_include_usage", "return_tokens_as_token_ids"),
        *("max_num_queued_reqs", "max_num_queued_tokens", "ready_timeout"),
    }
)
# Later files of a GGUF in several parts, and projectors of images: no models of their own.
_NO_MODEL = re.compile(r"(?:-(?!00001)\d{5}-of-\d{5}|^mmproj.*)\.gguf$")
_FIRST_PART = re.compile(r"-00001-of-\d{5}$")

Shares = dict[str, Annotated[float, Meta(gt=0)]]
Name = Annotated[str, Meta(min_length=1, max_length=256)]


class CatalogueConfig(ConfigPart, frozen=True):
    """Several models behind one address, loaded when requests name them (docs/catalogue.md)."""

    models: Annotated[
        str,
        Meta(description="YAML file of a catalogue of models, or a folder with one model in each file or folder"),
        TextForm(metavar="FILE"),
    ] = ""
    memory_budget: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="most memory of a catalogue's loaded models, as 16GiB; default: 80 % of what is available"),
        TextForm(size_unit=1),
    ] = None
    max_loaded_models: Annotated[
        int, Meta(description="most models of a catalogue that are loaded at the same time; 0: no bound", ge=0)
    ] = 0


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model's terms. A `pinned` one is loaded at start and stays.

    Others are unloaded `ttl` seconds after their last request; None: when their memory is needed. With `tenants`, only
    these may use it: names of API keys, or of tenants where there are no keys.
    """

    name: Name
    pinned: bool = False
    ttl: Annotated[float, Meta(gt=0)] | None = None
    tenants: tuple[Name, ...] = ()


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """All models in the file's order, the options of each by its name, and aliases: each with its models' shares."""

    entries: tuple[CatalogueEntry, ...]
    options: dict[str, dict[str, Any]]
    aliases: dict[str, Shares] = {}


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: dict[Name, Any]
    aliases: dict[Name, str | Shares] = {}


def read_catalogue(path: Path, shared: Mapping[str, Any]) -> Catalogue:
    """The catalogue of a YAML file or a folder. `shared` are options of every model, which its own replace.

    Raises:
        ConfigError: it cannot be read, has no models, or an option is unknown or out of its range.
    """
    return _of_folder(path, shared) if path.is_dir() else _of_file(path, shared)


def catalogue_of(models: Sequence[str], shared: Mapping[str, Any]) -> Catalogue:
    """The catalogue of models that a command line names.

    Raises:
        ConfigError: two of them have one name.
    """
    named: dict[str, Any] = {}
    for model in models:
        name = model_name(model)
        if name in named:
            raise ConfigError(
                f"{named[name]['model']} and {model} have one name, {name}: name them in a file, --models"
            )
        named[name] = {"model": model}
    return _catalogue("the command line", named, {}, shared)


def model_name(model: str) -> str:
    """The name in requests of a file or folder, without folders and suffix; a name of the hub stays as it is."""
    path = Path(model)
    if path.suffix == ".gguf" or path.exists():
        return _FIRST_PART.sub("", path.absolute().name.removesuffix(".gguf"))
    return model


def _of_folder(path: Path, shared: Mapping[str, Any]) -> Catalogue:
    found = [
        each
        for each in sorted(path.iterdir())
        if (each.suffix == ".gguf" and not _NO_MODEL.search(each.name)) or (each / "config.json").is_file()
    ]
    return _catalogue(str(path), {model_name(str(each)): {"model": str(each)} for each in found}, {}, shared)


def _of_file(path: Path, shared: Mapping[str, Any]) -> Catalogue:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        file = msgspec.convert(content, _File)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --models {path}: {getattr(error, 'strerror', None) or error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"--models {path} is not YAML: {' '.join(str(error).split())}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"--models {path}: {error}") from None
    named = {name: _terms_of(path, name, value) for name, value in file.models.items()}
    for terms in named.values():
        if isinstance(model := terms.get("model"), str) and (local := path.parent / model).exists():
            terms["model"] = str(local.absolute())
    aliases = {alias: {to: 1.0} if isinstance(to, str) else dict(to) for alias, to in file.aliases.items()}
    return _catalogue(f"--models {path}", named, aliases, shared)


def _terms_of(path: Path, name: str, value: Any) -> dict[str, Any]:
    """The keys of one model with underscores; a text alone is the model."""
    if value is None or isinstance(value, str):
        return {"model": value or name}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"--models {path}: {name} must be a model, or settings by name such as `model: FILE`")
    return {"model": name} | {key.replace("-", "_"): each for key, each in value.items()}


def _catalogue(
    source: str, named: Mapping[str, dict[str, Any]], aliases: dict[str, Shares], shared: Mapping[str, Any]
) -> Catalogue:
    if not named:
        raise ConfigError(f"{source} has no models")
    terms = frozenset(CatalogueEntry.__struct_fields__) - {"name"}
    known = {*option_names(), *SERVER_OPTIONS}
    entries, options = [], {}
    for name, given in named.items():
        for key in given.keys() - known - terms:
            near = nearest_name(key, [*known, *terms])
            raise ConfigError(
                f"{source}: {name} has the unknown setting {key}" + (f"; did you mean {near}?" if near else "")
            )
        try:
            own = {key: given[key] for key in given.keys() & terms}
            entries.append(msgspec.convert({"name": name, **own}, CatalogueEntry))
            options[name] = {**shared, **{key: given[key] for key in given.keys() & known}}
            options[name]["served_model_name"] = (name,)
            split_options(options[name])
        except (ConfigError, msgspec.ValidationError) as error:
            raise ConfigError(f"{source}: {name}: {error}") from None
    check_aliases(aliases, named)
    return Catalogue(entries=tuple(entries), options=options, aliases=aliases)


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A model's options of the engine and of the server.

    Raises:
        ConfigError: one of them is wrong.
    """
    of_server = {name: value for name, value in options.items() if name in SERVER_OPTIONS}
    of_engine = {name: value for name, value in options.items() if name not in SERVER_OPTIONS}
    engine_config(of_engine)
    config_part(ServerConfig, of_server)
    return of_engine, of_server


def check_aliases(aliases: Mapping[str, Shares], models: Mapping[str, Any] | Sequence[str]) -> None:
    """Refuse an alias that is a model's name, or has models that do not exist, or no shares.

    Raises:
        ConfigError: as said.
    """
    for alias, shares in aliases.items():
        if alias in models:
            raise ConfigError(f"the alias {alias!r} is a model of the catalogue")
        if not shares or not all(share > 0 and math.isfinite(share) for share in shares.values()):
            raise ConfigError(f"the alias {alias!r} needs models with shares above 0, such as {{chat: 95, canary: 5}}")
        for name in shares:
            if name not in models:
                raise ConfigError(f"the alias {alias!r} names {name!r}, which is no model of the catalogue")
