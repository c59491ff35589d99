from .store import KVStore, Retention, StoreStats

__all__ = ["KVStore", "Retention", "StoreStats"]
