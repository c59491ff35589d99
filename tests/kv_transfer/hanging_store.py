"""A store whose figures never come."""

import threading

from pyllm.kv_transfer.stores import StoreStats
from tests.kv_transfer.dict_store import DictStore


class HangingStore(DictStore):
    """`name` as of a `DictStore`."""

    def stats(self) -> list[StoreStats]:
        threading.Event().wait()
        return []
