"""CUDA graphs of head and sampling, for steps whose rows change no logits and need only a token.

They are separate from the graphs of the forward pass: one for each size of decode steps (at most 51) serves every step,
also mixed and eager ones, and a step that needs more can use the same graph of the forward pass. In one graph, each
pass would be captured twice. The price is a gather and a launch a step. All logits are in the graphs' one memory pool,
where the largest size makes room for the others. Knows neither the model nor the sampling: its caller passes both.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pyllm.workers.cuda_graphs import Capture, CaptureBudget, decode_buckets
from pyllm.workers.devices.torch_device import torch_dtype
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.sampling.sampler import SamplingRows
from pyllm.workers.sampling.token_sampler import Draw, TokenSampler
from pyllm.workers.step.batch import Batch
from pyllm.workers.step.slots import Slots

# The inputs are lines of 4 bytes a position: the slot that stores the token, top-k; temperature, top-p, min-p, uniform.
_LINES = 6
_FIRST_FLOATS = 2

DeviceSampler = Callable[[Tensor, SamplingRows, Tensor, Tensor], Tensor]
"""`sample_on_device`, or one that computes the same: logits, parameters, uniforms, rows of logits; gives tokens."""


class SamplingGraphs:
    """Captured heads and samplers for up to `max_num_seqs` positions, all over one set of buffers.

    `head` takes hidden states [rows, hidden_size] of `dtype`, and returns logits on rank 0 of the group, which sends
    the tokens to the others. All ranks must capture, and draw each step, together.
    """

    def __init__(
        self,
        head: Callable[[Tensor], Tensor | None],
        sample: DeviceSampler,
        slots: Slots,
        sampler: TokenSampler,
        *,
        max_num_seqs: int,
        hidden_size: int,
        dtype: str,
        group: RankGroup,
    ) -> None:
        self._group = group
        self._head = head
        self._sample = sample
        self._slots = slots
        self._sampler = sampler
        self._sizes = [bucket.rows for bucket in decode_buckets(max_num_seqs)]
        most, device = self._sizes[-1], slots.last_tokens.device
        self._hidden = torch.zeros((most, hidden_size), dtype=torch_dtype(dtype), device=device)
        self._memory = torch.empty(_LINES * most, dtype=torch.int32, device=device)
        self._rows = torch.arange(most, dtype=torch.int32, device=device)
        self._graphs: dict[int, tuple[Tensor, Callable[[], None]]] = {}

    def capture(self, capture: Capture, budget: CaptureBudget) -> None:
        """Capture sizes as long as the budget allows, the largest first, so that the others fit into its memory."""
        for size in reversed(self._sizes):
            if not budget.is_left():
                break
            lines = self._lines(size).zero_()
            lines[0].fill_(self._slots.nobody)  # The computation before the capture is real.
            self._graphs[size] = capture(partial(self._compute, size))
        self._sizes = sorted(self._graphs)

    def draw(self, step: int, batch: Batch, hidden: Tensor) -> Draw | None:
        """Draw a step's tokens from its hidden states [tokens, hidden_size]; the slots store each row's last one.

        It needs one copy to the device, a gather and one launch, and waits for none of them. None, with nothing done,
        if a row needs more than a token or there are too many positions.
        """
        num_positions = len(batch.host.logits_rows)
        if (
            not self._sizes
            or num_positions > self._sizes[-1]
            or (parameters := self._sampler.plain_rows(batch)) is None
        ):
            return None
        size = self._sizes[bisect_left(self._sizes, num_positions)]
        tokens, replay = self._graphs[size]
        staged = torch.empty((_LINES, size), dtype=torch.int32, pin_memory=self._memory.is_cuda)
        self._fill(staged, batch, parameters)
        self._lines(size).copy_(staged, non_blocking=True)
        torch.index_select(hidden, 0, batch.device.logits_rows, out=self._hidden[:num_positions])
        replay()
        return self._sampler.drawn(step, batch, tokens[:num_positions])

    def _lines(self, size: int) -> Tensor:
        return self._memory[: _LINES * size].view(_LINES, size)

    def _compute(self, size: int) -> Tensor:
        """The computation that graphs capture."""
        lines = self._lines(size)
        temperature, top_p, min_p, uniforms = lines[_FIRST_FLOATS:].view(torch.float32)
        logits = self._head(self._hidden[:size])
        if logits is None:
            tokens = torch.empty(size, dtype=torch.int32, device=lines.device)
        else:
            parameters = SamplingRows(temperature, lines[1], top_p, min_p)
            tokens = self._sample(logits, parameters, uniforms, self._rows[:size])
        self._group.broadcast(tokens)
        self._slots.keep(lines[0], tokens.clip(min=0))
        return tokens

    def _fill(self, staged: Tensor, batch: Batch, parameters: SamplingRows) -> None:
        """Write a step's inputs. Padding positions are greedy and belong to no slot."""
        lines, num_positions = staged.numpy(), len(batch.host.uniforms)
        lines[0, :num_positions] = self._slots.keepers(batch)
        lines[0, num_positions:] = self._slots.nobody
        lines[1, :num_positions] = parameters.top_k
        floats = parameters.temperature, parameters.top_p, parameters.min_p, batch.host.uniforms
        for line, values in zip(lines[_FIRST_FLOATS:].view(np.float32), floats, strict=True):
            line[:num_positions] = values
        lines[1:, num_positions:] = 0


def graph_bytes(max_num_seqs: int, hidden_size: int, vocab_size: int, dtype: str, group: RankGroup) -> int:
    """The memory of the graphs on a rank: the logits of the largest size, in the pool, and the buffers."""
    most, share = decode_buckets(max_num_seqs)[-1].rows, -(-vocab_size // group.size)
    # With several ranks, rank 0 gathers the shares and joins them.
    num_logits = share if group.size == 1 or group.rank else share * (1 + 2 * group.size)
    return most * ((hidden_size + num_logits) * torch_dtype(dtype).itemsize + 4 * (_LINES + 1))
