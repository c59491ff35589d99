"""Hidden states from pipeline stage to pipeline stage: a rank receives them from the stage before, and sends its own.

Knows neither layers nor plans. Sizes follow from the plan, which all stages have.
"""

from pyllm_kernels.tensors import Tensor, numpy_dtype

from pyllm.config.engine_settings import ParallelConfig
from pyllm.config.rank_coordinates import coordinates_of
from pyllm.workers.devices.device import Device
from pyllm.workers.layers.rank_group import RankGroup


class StageLink:
    """The link of rank `rank` to the ranks with its tensor-parallel rank in the stages before and after its own.

    A step's states are one tensor [tokens, width] in the model's dtype, the tensors of `ModelSpec.stage_widths` side by
    side. `send` copies the states and does not wait: a stage begins its next step while the next stage still computes
    this one. There are as many buffers as stages, and as many steps may be in flight; so a buffer is read before its
    reuse.
    """

    def __init__(self, rank: int, parallel: ParallelConfig, group: RankGroup) -> None:
        self._receives = coordinates_of(rank, parallel).stage > 0
        self._num_stages = parallel.pipeline_parallel_size
        self._group = group
        self._incoming: Tensor | None = None

    @property
    def incoming(self) -> Tensor | None:
        """The buffer of received states, [max_tokens, width], at a fixed address; None on the first stage.

        It is zeros before the first message, for steps that only measure.
        """
        return self._incoming

    def allocate(self, max_tokens: int, width: int, dtype: str, device: Device) -> None:
        """Allocate the buffers, for steps of up to `max_tokens` tokens."""
        if self._receives:
            self._incoming = device.zeros((max_tokens, width), dtype)
        if self._num_stages > 1:
            num_bytes = max_tokens * width * numpy_dtype(dtype).itemsize
            self._group.exchange.allocate_messages(self._num_stages, num_bytes)

    def receive(self, num_tokens: int) -> None:
        """Wait for a step's states and write them to the start of `incoming`; the first stage receives nothing.

        On a GPU the stream waits, and not this thread.
        """
        if self._receives:
            assert self._incoming is not None, "allocate comes first"
            self._group.exchange.receive(self._incoming[:num_tokens])

    def send(self, states: Tensor) -> None:
        """Send a step's states [tokens, width] to the next stage, without waiting for it."""
        self._group.exchange.send(states)
