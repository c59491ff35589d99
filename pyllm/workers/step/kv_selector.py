"""What chooses the KV blocks that the rows of a step attend to, layer by layer: sparse attention.

Its calls have the names of UCM's sparse attention, and stand where those do: around the forward pass and each
attention. Knows no way to choose.
"""

from typing import Protocol

from pyllm_kernels import AttentionLayer, AttentionMetadata
from torch import Tensor

from pyllm.workers.step.attention_batch import Ints
from pyllm.workers.step.step_rows import StepRows


class KVSelector(Protocol):
    """An entry point's factory, or one of our own, makes it for one rank and its KV cache.

    - `in_graphs` promises that `attention_begin` and `attention_finished` do nothing but ops of `pyllm_kernels` on a
      CPU, on memory that stays: then they are called once, when the step is captured. Else steps run without graphs.

    What a row chooses may depend on its own query, keys and position only: else its tokens depend on the batch.
    """

    @property
    def in_graphs(self) -> bool: ...

    def blocks_written(self, blocks: Ints) -> None:
        """Keys and values of these blocks, of any group, are about to change, or have: by the step that follows, by a
        copy, a swap or a load. What was known of them is out of date.
        """

    def execute_begin(self, rows: StepRows) -> None:
        """Called before the forward pass, with the rows that `metadata` has then."""

    def attention_begin(
        self, layer: int, query: Tensor, metadata: AttentionMetadata, attention: AttentionLayer
    ) -> AttentionMetadata:
        """Called when a layer has written its keys and values; gives the metadata that its attention reads.

        query [tokens, heads of this rank, head_size], rotated. A block table may leave blocks out, with the length of
        what is left: keys are rotated already. The block of the row's last token must be the last one.
        """

    def attention_finished(self, layer: int, output: Tensor) -> None:
        """Called after a layer's attention with its output [tokens, heads of this rank, head_size], as it is."""

    def execute_finished(self) -> None:
        """Called after the forward pass."""
