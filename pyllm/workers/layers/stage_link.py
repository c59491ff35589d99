"""Hidden states from pipeline stage to pipeline stage: a rank receives them from the stage before, and sends its own.

Knows neither layers nor plans. Sizes follow from the plan, which all stages have, so no message contains them.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from pyllm.config.engine_settings import ParallelConfig
from pyllm.config.rank_coordinates import coordinates_of


class StageLink:
    """The link of rank `rank` to the ranks with its tensor-parallel rank in the stages before and after its own.

    A step's states are two tensors [tokens, hidden_size], in the model's dtype: a pending output and the residual
    stream, in one message. `send` copies the states and does not wait: a stage begins its next step while the next
    stage still computes this one. There are as many buffers as stages, and as many steps may be in flight; so a buffer
    is read before its reuse.
    """

    def __init__(self, rank: int, parallel: ParallelConfig) -> None:
        stage, ranks = coordinates_of(rank, parallel).stage, parallel.tensor_parallel_size
        self._before = rank - ranks if stage else None
        self._after = rank + ranks if stage + 1 < parallel.pipeline_parallel_size else None
        self._num_buffers = parallel.pipeline_parallel_size
        self._incoming: Tensor | None = None
        self._message: Tensor | None = None
        self._outgoing: Tensor | None = None
        self._sending: list[dist.Work | None] = [None] * self._num_buffers
        self._next = 0

    @property
    def incoming(self) -> Tensor | None:
        """The buffer of received states, [2, max_tokens, hidden_size], at a fixed address; None on the first stage.

        It is zeros before the first message, for steps that only measure.
        """
        return self._incoming

    def allocate(self, max_tokens: int, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        """Allocate the buffers, for steps of up to `max_tokens` tokens."""
        size = 2 * max_tokens * hidden_size
        if self._before is not None:
            self._incoming = torch.zeros((2, max_tokens, hidden_size), dtype=dtype, device=device)
            self._message = torch.zeros(size, dtype=dtype, device=device)
        if self._after is not None:
            self._outgoing = torch.zeros((self._num_buffers, size), dtype=dtype, device=device)

    def receive(self, num_tokens: int) -> None:
        """Wait for a step's states and copy them to the start of `incoming`; the first stage receives nothing.

        On a GPU the stream waits, and not this thread.
        """
        if self._before is None:
            return
        assert self._incoming is not None, "allocate comes first"
        assert self._message is not None, "it is made with `incoming`"
        states = self._incoming[:, :num_tokens]
        message = self._message[: states.numel()]
        work = dist.irecv(message, self._before)
        assert work is not None, "this rank is in the group"
        work.wait()
        states.copy_(message.view(states.shape))

    def send(self, states: Tensor) -> None:
        """Send a step's states [2, tokens, hidden_size] to the next stage, without waiting for it."""
        assert self._after is not None, "the last stage sends nothing"
        assert self._outgoing is not None, "allocate comes first"
        if (earlier := self._sending[self._next]) is not None:
            earlier.wait()
        message = self._outgoing[self._next, : states.numel()]
        message.view(states.shape).copy_(states)
        self._sending[self._next] = dist.isend(message, self._after)
        self._next = (self._next + 1) % self._num_buffers
