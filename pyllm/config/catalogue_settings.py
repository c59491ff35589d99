"""The settings of a catalogue: the models that one server loads when requests name them. Opens no file."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pyllm.config.option_fields import ConfigPart, TextForm
from pyllm.config.option_reading import config_part, engine_config
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
        Meta(description="most memory of a catalogue's loaded models, as 16GiB; default: 4 / 5 of what is available"),
        TextForm(size_unit=1),
    ] = None
    max_loaded_models: Annotated[
        int, Meta(description="most models of a catalogue that are loaded at the same time; 0: no bound", ge=0)
    ] = 0


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model's terms. A `pinned` one is loaded at start and stays.

    Others are unloaded `ttl` seconds after their last request; None: when their memory is needed. With `tenants`, only
    these may use it: names of API keys, or of tenants where there are no keys. `files` are the model as its options
    name it, if the files alone say what it is; with options that change that it is None.
    """

    name: Name
    files: str | None = None
    max_model_len: int | None = None
    pinned: bool = False
    ttl: Annotated[float, Meta(gt=0)] | None = None
    tenants: tuple[Name, ...] = ()


class CatalogueModels(msgspec.Struct, frozen=True, kw_only=True):
    """All models in the file's order, the options of each by its name, and aliases: each with its models' shares."""

    entries: tuple[CatalogueEntry, ...]
    options: dict[str, dict[str, Any]]
    aliases: dict[str, Shares] = {}


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
