"""Which cores an application has, and the keys of their sockets: in Ray's own key-value store, which all nodes reach.

A core registers its address and beats once a second; API replicas poll the entries. Opens no socket.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from pyllm.wire.curve import KeyPairs, key_pairs

BEAT_TIMEOUT = 10.0  # seconds without a sign of life after which a core is taken to be gone
BEAT_INTERVAL = 1.0
_NAMESPACE = b"pyllm"


class CoreRegistration(msgspec.Struct, frozen=True):
    """A core of an application: its address, the settings it was started with, and how often it has said so."""

    address: str
    settings: str  # their hash
    fingerprint: str  # as in `Ready`
    beat: int = 0


class CoreRegistry:
    """Of one application. Its methods ask the cluster, on a thread."""

    def __init__(self, application: str) -> None:
        self._prefix = f"{application}/"

    async def keys(self) -> KeyPairs:
        """The keys of the application's cores and of their clients, made by whoever asks first."""
        made = msgspec.msgpack.encode(key_pairs())
        return await asyncio.to_thread(self._keys, made)

    async def put(self, name: str, entry: CoreRegistration) -> None:
        """Say where a core is; to be repeated."""
        value = msgspec.msgpack.encode(entry)
        await asyncio.to_thread(_store()._internal_kv_put, self._key(name), value, True, namespace=_NAMESPACE)

    async def remove(self, name: str) -> None:
        """Say that a core leaves."""
        await asyncio.to_thread(_store()._internal_kv_del, self._key(name), namespace=_NAMESPACE)

    async def entries(self) -> dict[str, CoreRegistration]:
        """The cores, by their names, those that are gone without a word included."""
        return await asyncio.to_thread(self._entries)

    def _key(self, name: str) -> bytes:
        return f"{self._prefix}cores/{name}".encode()

    def _keys(self, made: bytes) -> KeyPairs:
        key, store = f"{self._prefix}keys".encode(), _store()
        store._internal_kv_put(key, made, False, namespace=_NAMESPACE)  # unless another was faster
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
    """The entries whose beats go on: by this side's clock, as those of other machines may differ."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def look(self, entries: Mapping[str, CoreRegistration], now: float) -> None:
        """Take note of the entries as they are `now`."""
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
        """Those that have said something new since they were first seen: they live, or did a moment ago."""
        return [each.entry for each in self._seen.values() if each.has_moved]

    def live(self, now: float) -> dict[str, CoreRegistration]:
        """Those that have said something new within `BEAT_TIMEOUT` seconds, or were first seen then."""
        return {name: each.entry for name, each in self._seen.items() if now - each.since < BEAT_TIMEOUT}

    def silent(self, now: float) -> list[str]:
        """The names of the others."""
        return [name for name, each in self._seen.items() if now - each.since >= BEAT_TIMEOUT]


class _Seen(NamedTuple):
    """An entry, when it was new, and whether there was one before it."""

    entry: CoreRegistration
    since: float
    has_moved: bool


def _store() -> Any:
    from ray.experimental import internal_kv

    return internal_kv
