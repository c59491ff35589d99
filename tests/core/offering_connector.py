"""A connector's half in the core that has every prompt whole."""

from collections.abc import Sequence

from pyllm.config.kv_transfer_settings import KVTransferConfig
from pyllm.kv_transfer import ConnectorContext, SchedulerConnector, SchedulerOutput, TransferRequest
from tests.core.remembering_executor import BLOCK_SIZE


class OfferingConnector(SchedulerConnector):
    """Says what it has once `knows` is set. `told` is what ranks were told last, `finished` the requests that ended."""

    def __init__(self, num_ranks: int = 1) -> None:
        context = ConnectorContext(namespace=bytes(32), block_size=BLOCK_SIZE, num_ranks=num_ranks)
        super().__init__(KVTransferConfig(kv_connector="Offering"), context)
        self.told = SchedulerOutput()
        self.finished: list[str] = []
        self.knows = True

    def get_num_new_matched_tokens(self, request: TransferRequest, num_computed_tokens: int) -> tuple[int | None, bool]:
        return len(request.block_hashes) * BLOCK_SIZE - num_computed_tokens if self.knows else None, False

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> bytes:
        self.told = scheduler_output
        return b"told"

    def request_finished(self, request: TransferRequest, block_ids: Sequence[Sequence[int]]) -> tuple[bool, None]:
        self.finished.append(request.request_id)
        return False, None
