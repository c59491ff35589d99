"""Blocks whose value follows from their number, so that each test knows a wrong one."""

import hashlib
from collections.abc import Iterable

from pyllm.kv_transfer.stores.store import KVStore, Retention

BLOCK_BYTES = 700


def key_of(number: int) -> bytes:
    """72 bytes, as the connector's are."""
    return hashlib.shake_128(b"key %d" % number).digest(72)


def value_of(number: int) -> bytes:
    return hashlib.shake_128(b"value %d" % number).digest(BLOCK_BYTES)


def save(store: KVStore, numbers: Iterable[int], retention: Retention = "default") -> list[bool]:
    numbers = list(numbers)
    blocks = [memoryview(value_of(number)) for number in numbers]
    return store.save([key_of(number) for number in numbers], blocks, retention)


def load(store: KVStore, numbers: Iterable[int]) -> list[int]:
    """The numbers of the blocks that were found. Fails if one is wrong."""
    numbers = list(numbers)
    into = [memoryview(bytearray(BLOCK_BYTES)) for _ in numbers]
    loaded = store.load([key_of(number) for number in numbers], into)
    found = [(number, buffer) for number, buffer, is_loaded in zip(numbers, into, loaded, strict=True) if is_loaded]
    assert all(buffer == value_of(number) for number, buffer in found)
    return [number for number, _ in found]


def lookup(store: KVStore, numbers: Iterable[int]) -> list[int]:
    numbers = list(numbers)
    found = store.lookup([key_of(number) for number in numbers])
    return [number for number, is_there in zip(numbers, found, strict=True) if is_there]
