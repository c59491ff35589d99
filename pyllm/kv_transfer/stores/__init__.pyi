from .disk_store import DiskStore
from .store import KVStore, Retention, StoreStats

__all__ = ["DiskStore", "KVStore", "Retention", "StoreStats"]
