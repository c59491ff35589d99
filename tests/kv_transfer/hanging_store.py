"""A store whose `stats` never returns."""

import threading

from pyllm.kv_transfer.stores.store import StoreStats
from tests.kv_transfer.dict_store import DictStore


class HangingStore(DictStore):
    """`name` is that of the `DictStore`."""

    def stats(self) -> list[StoreStats]:
        threading.Event().wait()
        return []
