"""The registry of an application's cores and of the keys of their sockets, in Ray's key-value store for all nodes.

A core registers its address and renews it once a second; API replicas poll the entries. Opens no sockets.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from pyllm.wire.curve import KeyPairs, key_pairs

BEAT_TIMEOUT = 10.0  # seconds without a heartbeat after which a core counts as gone
BEAT_INTERVAL = 1.0
_NAMESPACE = b"pyllm"


class CoreRegistration(msgspec.Struct, frozen=True):
    """A core of an application: its address, the settings it was started with, and its number of heartbeats."""

    address: str
    settings: str  # their hash
    fingerprint: str  # as in `Ready`
    beat: int = 0


class CoreRegistry:
    """The registry of one application. Its methods call the cluster on a thread."""

    def __init__(self, application: str) -> None:
        self._prefix = f"{application}/"

    async def keys(self) -> KeyPairs:
        """The keys of the application's cores and of their clients; the first caller makes them."""
        made = msgspec.msgpack.encode(key_pairs())
        return await asyncio.to_thread(self._keys, made)

    async def put(self, name: str, entry: CoreRegistration) -> None:
        """Register a core; to be repeated as its heartbeat."""
        value = msgspec.msgpack.encode(entry)
        await asyncio.to_thread(_store()._internal_kv_put, self._key(name), value, True, namespace=_NAMESPACE)

    async def remove(self, name: str) -> None:
        """Remove the entry of a core."""
        await asyncio.to_thread(_store()._internal_kv_del, self._key(name), namespace=_NAMESPACE)

    async def entries(self) -> dict[str, CoreRegistration]:
        """The cores by name, including those that ended without removing their entry."""
        return await asyncio.to_thread(self._entries)

    def _key(self, name: str) -> bytes:
        return f"{self._prefix}cores/{name}".encode()

    def _keys(self, made: bytes) -> KeyPairs:
        key, store = f"{self._prefix}keys".encode(), _store()
        store._internal_kv_put(key, made, False, namespace=_NAMESPACE)  # no effect if there are keys already
        return msgspec.msgpack.decode(store._internal_kv_get(key, namespace=_NAMESPACE), type=KeyPairs)

    def _entries(self) -> dict[str, CoreRegistration]:
        store, prefix = _store(), self._key("")
        found = {}
        for key in store._internal_kv_list(prefix, namespace=_NAMESPACE):
            value = store._internal_kv_get(key, namespace=_NAMESPACE)
            if value is not None:  # It may have left just now.
                found[key.removeprefix(prefix).decode()] = msgspec.msgpack.decode(value, type=CoreRegistration)
        return found


class LiveCores:
    """The cores with recent heartbeats, by this process's clock, as those of other machines may differ."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def look(self, entries: Mapping[str, CoreRegistration], now: float) -> None:
        """Note the entries read at time `now`."""
        seen = {}
        for name, entry in entries.items():
            before = self._seen.get(name)
            if before is None:
                seen[name] = _Seen(entry, now, has_moved=False)
            elif before.entry.beat != entry.beat:
                seen[name] = _Seen(entry, now, has_moved=True)
            else:
                seen[name] = before
        self._seen = seen

    def beating(self) -> list[CoreRegistration]:
        """The cores with a heartbeat since they were first seen: they live, or did a moment ago."""
        return [each.entry for each in self._seen.values() if each.has_moved]

    def live(self, now: float) -> dict[str, CoreRegistration]:
        """The cores by name that had a heartbeat, or were first seen, within `BEAT_TIMEOUT` seconds."""
        return {name: each.entry for name, each in self._seen.items() if now - each.since < BEAT_TIMEOUT}

    def silent(self, now: float) -> list[str]:
        """The names of all other cores."""
        return [name for name, each in self._seen.items() if now - each.since >= BEAT_TIMEOUT]


class _Seen(NamedTuple):
    """A core's latest entry, the time it was first seen, and whether it has followed another."""

    entry: CoreRegistration
    since: float
    has_moved: bool


def _store() -> Any:
    from ray.experimental import internal_kv

    return internal_kv
