"""The settings of the store connector and the store that they name; the keys of its blocks. Knows no step."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from pyllm.config.engine_settings import CacheConfig
from pyllm.config.kv_transfer_settings import KVTransferConfig
from pyllm.errors import ConfigError
from pyllm.kv_transfer.stores import DiskStore, KVStore, RedisStore, Retention
from pyllm.kv_transfer.tiered_store import TieredStore

MAX_THREADS = 256
# Seconds. The core ends a rank whose load does not end in 120 s, and holds a request for a look-up for 30 s.
MAX_LOAD_TIMEOUT, MAX_LOOKUP_TIMEOUT = 60.0, 20.0


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`kv_connector_extra_config` of a `StoreConnector`.

    - `store`: `module:name` of a callable, which gets `store_options` as keywords and gives a `KVStore`; empty: the
      stores of `kv_cache_dir` and `kv_cache_redis_url`, the disk first.
    - `io_threads`, `staging_bytes`: of each rank: threads that wait for the store, and host memory for blocks that are
      to be saved. A block that finds no room in it is not saved.
    - `load_timeout`, `lookup_timeout`: seconds, after which the rest of a load is computed, and a request stops waiting
      to hear what the store has.
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
    most = {"io_threads": MAX_THREADS, "load_timeout": MAX_LOAD_TIMEOUT, "lookup_timeout": MAX_LOOKUP_TIMEOUT}
    for name, limit in most.items():
        if getattr(settings, name) > limit:
            raise ConfigError(
                f"{name} of {config.kv_connector} must be at most {limit:g}, not {getattr(settings, name):g}"
            )
    for name in ("io_threads", "staging_bytes", "load_timeout", "lookup_timeout"):
        if getattr(settings, name) <= 0:
            raise ConfigError(f"{name} of {config.kv_connector} must be above 0, not {getattr(settings, name)}")
    return settings


def open_store(settings: StoreSettings, cache: CacheConfig, *, promotes: bool = True) -> KVStore:
    """The store, which this process closes. `promotes`: blocks that a slower tier gives are saved in the faster ones.

    Raises:
        ConfigError: there is none, or it cannot be opened.
    """
    if not settings.store:
        tiers: list[KVStore] = []
        if cache.kv_cache_dir:
            tiers.append(DiskStore(Path(cache.kv_cache_dir).expanduser(), cache.kv_cache_disk_size))
        if cache.kv_cache_redis_url:
            tiers.append(RedisStore(cache.kv_cache_redis_url))
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
