"""The connector of a store: full blocks are saved by the hash of their contents and found by every later request.

Composes its two halves.
"""

from pyllm.kv_transfer.connector_factory import KVConnector
from pyllm.kv_transfer.store_lookup import StoreLookup
from pyllm.kv_transfer.store_transfer import StoreTransfer

StoreConnector = KVConnector(StoreLookup, StoreTransfer)
