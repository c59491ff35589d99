"""The settings of the store connector, the store that they name, and the keys of its blocks. Knows no steps."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from pyllm.config.engine_settings import CacheConfig
from pyllm.config.kv_transfer_settings import KVTransferConfig
from pyllm.errors import ConfigError
from pyllm.kv_transfer.scheduler_connector import HOLD_SECONDS, TRANSFER_SECONDS
from pyllm.kv_transfer.stores.disk_store import DiskStore
from pyllm.kv_transfer.stores.redis_store import RedisStore
from pyllm.kv_transfer.stores.store import KVStore, Retention
from pyllm.kv_transfer.tiered_store import TieredStore

# The core restarts all ranks if a load takes TRANSFER_SECONDS, so a load must be given up well before.
_MOST = {
    "io_threads": 256,
    "staging_bytes": 1 << 40,
    "load_timeout": TRANSFER_SECONDS / 2,
    "lookup_timeout": HOLD_SECONDS,
}


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`kv_connector_extra_config` of a `StoreConnector`.

    - `store`: `module:name` of a callable, which gets `store_options` as keywords and returns a `KVStore`; empty: the
      stores of `kv_cache_dir` and `kv_cache_redis_url`, the disk first.
    - `io_threads`: threads of each rank that read the store.
    - `staging_bytes`: host memory of each rank for blocks on their way to the store. When it is full, blocks are not
      saved.
    - `load_timeout`: seconds after which the rest of a load is computed.
    - `lookup_timeout`: seconds after which a request runs without an answer of the store.
    - `retention`: the retention of blocks whose request has none.
    """

    store: str = ""
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
    for name, most in _MOST.items():
        if not 0 < (value := getattr(settings, name)) <= most:
            raise ConfigError(f"{name} of {config.kv_connector} must be above 0 and at most {most:,}, not {value}")
    return settings


def open_store(settings: StoreSettings, cache: CacheConfig, *, promotes: bool = True) -> KVStore:
    """Open the store; the caller closes it. `promotes`: see `TieredStore`.

    Raises:
        ConfigError: there is no such store, or it cannot be opened.
    """
    if not settings.store:
        tiers: list[KVStore] = []
        # Redis first: if its URL is refused, the folder must not stay open.
        if cache.kv_cache_redis_url:
            tiers.append(RedisStore(cache.kv_cache_redis_url))
        if cache.kv_cache_dir:
            tiers.insert(0, DiskStore(Path(cache.kv_cache_dir).expanduser(), cache.kv_cache_disk_size))
        if not tiers:
            raise ConfigError(
                "there is no store of KV blocks: give kv_cache_dir, kv_cache_redis_url, or in "
                "kv_connector_extra_config a store as module:name"
            )
        return tiers[0] if len(tiers) == 1 else TieredStore(tiers, promotes=promotes and settings.retention != "none")
    if cache.kv_cache_dir or cache.kv_cache_redis_url:
        raise ConfigError(
            f"the store {settings.store!r} takes the place of those in kv_cache_dir and kv_cache_redis_url: "
            "leave these or the store of kv_connector_extra_config out"
        )
    module, _, name = settings.store.partition(":")
    try:
        make: Callable[..., KVStore] = getattr(importlib.import_module(module), name)
        return make(**settings.store_options)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"the store {settings.store!r} cannot be opened: {error}; write module:name") from error


def block_key(namespace: bytes, block_hash: bytes, group: int, rank: int) -> bytes:
    """The key of one block of one group of layers of one rank."""
    return namespace + block_hash + group.to_bytes(4, "little") + rank.to_bytes(4, "little")
