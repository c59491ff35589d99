"""The settings of the store connector and the store that they name; the keys of its blocks. Knows no step."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from pyllm.config.kv_transfer_settings import KVTransferConfig
from pyllm.errors import ConfigError
from pyllm.kv_transfer.scheduler_connector import ConnectorContext
from pyllm.kv_transfer.stores import DiskStore, KVStore, Retention


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`kv_connector_extra_config` of a `StoreConnector`.

    - `store`: `disk`, in the folder `path` with at most `max_bytes`; or `module:name` of a callable, which gets
      `store_options` as keywords and gives a `KVStore`.
    - `io_threads`, `staging_bytes`: of each rank: threads that wait for the store, and host memory for blocks that are
      to be saved. A block that finds no room in it is not saved.
    - `load_timeout`, `lookup_timeout`: seconds, after which the rest of a load is computed, and a request stops waiting
      to hear what the store has.
    """

    store: str = "disk"
    path: str = ""
    max_bytes: int = 10 << 30
    store_options: dict[str, Any] = {}
    io_threads: int = 2
    staging_bytes: int = 64 << 20
    load_timeout: float = 10.0
    lookup_timeout: float = 0.5
    retention: Retention = "default"


def read_store_settings(config: KVTransferConfig) -> StoreSettings:
    """The settings of a store connector.

    Raises:
        ConfigError: a key is unknown, or a value out of its range.
    """
    try:
        settings = msgspec.convert(config.kv_connector_extra_config, StoreSettings)
    except msgspec.ValidationError as error:
        keys = ", ".join(StoreSettings.__struct_fields__)
        raise ConfigError(f"kv_connector_extra_config of {config.kv_connector}: {error}; its keys are {keys}") from None
    for name in ("max_bytes", "io_threads", "staging_bytes", "load_timeout", "lookup_timeout"):
        if getattr(settings, name) <= 0:
            raise ConfigError(f"{name} of {config.kv_connector} must be above 0, not {getattr(settings, name)}")
    if settings.store == "disk" and not settings.path:
        raise ConfigError(f"{config.kv_connector} with the store disk needs a folder: give path")
    return settings


def open_store(settings: StoreSettings) -> KVStore:
    """The store, which this process closes.

    Raises:
        ConfigError: it cannot be opened.
    """
    if settings.store == "disk":
        return DiskStore(Path(settings.path), settings.max_bytes)
    module, _, name = settings.store.partition(":")
    try:
        make: Callable[..., KVStore] = getattr(importlib.import_module(module), name)
        return make(**settings.store_options)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"the store {settings.store!r} cannot be opened: {error}; give disk, or module:name") from error




def block_key(context: ConnectorContext, block_hash: bytes, group: int, rank: int) -> bytes:
    """The key of one block of one group of layers of one rank."""
    return context.namespace + block_hash + group.to_bytes(4, "little") + rank.to_bytes(4, "little")
