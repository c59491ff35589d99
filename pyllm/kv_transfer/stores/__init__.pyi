from .disk_store import DiskStore
from .redis_store import RedisStore
from .store import KVStore, Retention, StoreStats

__all__ = ["DiskStore", "KVStore", "RedisStore", "Retention", "StoreStats"]
