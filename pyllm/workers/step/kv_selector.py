"""The interface of sparse attention: a selector chooses, layer by layer, the KV blocks that a step's rows attend to.

Its methods have the names of UCM's sparse attention, and are called at the same points: around the forward pass and
each attention. Knows no selector.
"""

from typing import Protocol

from pyllm_kernels import AttentionLayer, AttentionMetadata
from pyllm_kernels.tensors import Tensor

from pyllm.workers.step.attention_batch import Ints
from pyllm.workers.step.step_rows import StepRows


class KVSelector(Protocol):
    """A selector for one rank and its KV cache, built in or made by the factory of an entry point.

    - `in_graphs` promises that `attention_begin` and `attention_finished` consist of ops of `pyllm_kernels` on a CPU,
      on memory at fixed addresses. Then they are called once, when the step is captured. Otherwise steps run without
      graphs.

    The choice for a row may depend only on its own query, keys and position; otherwise its tokens depend on the batch.
    """

    @property
    def in_graphs(self) -> bool: ...

    def blocks_written(self, blocks: Ints) -> None:
        """Drop all state of these blocks, of any group: their keys and values have changed or will change.

        The cause is a copy, a swap, a load or the step that follows.
        """

    def execute_begin(self, rows: StepRows) -> None:
        """Called before the forward pass, with the rows of the `metadata` in `attention_begin`."""

    def attention_begin(
        self, layer: int, query: Tensor, metadata: AttentionMetadata, attention: AttentionLayer
    ) -> AttentionMetadata:
        """Called when a layer has written its keys and values; returns the metadata for its attention.

        query [tokens, heads of this rank, head_size], rotated. Block tables may leave blocks out if the lengths shrink
        accordingly, as keys are already rotated. The block of the row's last token must stay the last one.
        """

    def attention_finished(self, layer: int, output: Tensor) -> None:
        """Called after a layer's attention with its output itself, [tokens, heads of this rank, head_size]."""

    def execute_finished(self) -> None:
        """Called after the forward pass."""
