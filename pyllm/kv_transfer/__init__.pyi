from .connector_factory import (
    KVConnector,
    check_connector,
    find_connector,
    make_scheduler_connector,
    make_worker_connector,
)
from .scheduler_connector import (
    HOLD_SECONDS,
    TRANSFER_SECONDS,
    BlockLoad,
    BlockSave,
    ConnectorContext,
    SchedulerConnector,
    SchedulerOutput,
    TransferRequest,
)
from .store_settings import block_key
from .tier_figures import TierReport, TierTotals, summed, tiers_of
from .worker_connector import KVBlocks, WorkerConnector, works_by_layer

__all__ = [
    "HOLD_SECONDS",
    "TRANSFER_SECONDS",
    "BlockLoad",
    "BlockSave",
    "ConnectorContext",
    "KVBlocks",
    "KVConnector",
    "SchedulerConnector",
    "SchedulerOutput",
    "TierReport",
    "TierTotals",
    "TransferRequest",
    "WorkerConnector",
    "block_key",
    "check_connector",
    "find_connector",
    "make_scheduler_connector",
    "make_worker_connector",
    "summed",
    "tiers_of",
    "works_by_layer",
]
