"""Masks, biases and penalties on logits. Knows neither requests nor the reasons for edits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from pyllm_kernels import _cpu, graph
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Array, Tensor, widened


@dataclass(frozen=True, slots=True)
class LogitsEdits:
    """Ragged edits: row i has the edits `starts[i]` to `starts[i + 1]`, each of another token.

    `bias` is added to a logit; then a positive one is divided by `repetition`, any other multiplied by it; then
    `subtracted` is subtracted.
    """

    starts: Tensor  # int32 [rows + 1]
    ids: Tensor  # int32 [edits]
    bias: Tensor  # float32 [edits]
    repetition: Tensor  # float32 [edits], positive
    subtracted: Tensor  # float32 [edits]

    @classmethod
    def from_columns(cls, columns: tuple[bytearray, bytearray, bytearray, bytearray, bytearray]) -> Self:
        """The result of `LogitsStates.edits` as arrays, without a copy."""
        starts, ids, *floats = columns
        ints = (np.frombuffer(column, np.int32) for column in (starts, ids))
        return cls(*ints, *(np.frombuffer(column, np.float32) for column in floats))

    def moved(self, move: Callable[[Sequence[Array]], Sequence[Tensor]]) -> Self:
        """The edits where `move` puts arrays of the host."""
        return type(self)(*move((self.starts, self.ids, self.bias, self.repetition, self.subtracted)))


def _edit_logits(
    logits: Array,
    rows: Array,
    edits: LogitsEdits,
    mask_rows: Array | None = None,
    masks: Array | None = None,
    out: Array | None = None,
) -> Array:
    edited = widened(logits[rows])  # [samples, vocabulary]
    num_samples, vocabulary = edited.shape
    if mask_rows is not None and masks is not None:
        edited[_banned(masks, vocabulary)[mask_rows]] = -np.inf
    places = np.repeat(np.arange(num_samples), np.diff(edits.starts)) * vocabulary + edits.ids
    flat = edited.reshape(-1)
    biased = flat[places] + edits.bias
    penalised = np.where(biased > 0, biased / edits.repetition, biased * edits.repetition)
    flat[places] = penalised - edits.subtracted
    if out is None:
        return edited
    out[...] = edited
    return out


@op(reference=_edit_logits, triton="pyllm_kernels.gpu.logits")
def edit_logits(
    logits: Tensor,
    rows: Tensor,
    edits: LogitsEdits,
    mask_rows: Tensor | None = None,
    masks: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """A float32 copy of some rows of logits, masked, then edited; logits [rows, vocabulary] -> [samples, vocabulary].

    - rows int32 [samples], the row of each sample; edits have a row for each sample.
    - masks int32 or uint32 [masks, words]: token t is allowed if bit t % 32 of word t // 32 is set; the logit of any
      other token, or of one without a word, becomes minus infinity. Bits beyond the vocabulary are ignored.
    - mask_rows int32 [samples], the mask of each sample; -1: none.
    - out float32 [samples, vocabulary]: gets the result and is returned; reused memory costs a CPU a third of what new
      memory does.

    A GPU does not wait for the host. On a CPU, indices out of range raise an `IndexError`.
    """
    if out is None:
        out = graph.empty((len(rows), logits.shape[1]), logits, "float32")
    _cpu.ops.edit_logits(logits, rows, edits, mask_rows, masks, out)
    return out


def _banned(masks: Array, vocabulary: int) -> Array:
    """The tokens whose bits are 0 or missing; bool [masks + 1, vocabulary]; the last row, mask -1, bans nothing."""
    bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, :vocabulary]
    banned = np.ones((len(masks) + 1, vocabulary), bool)
    banned[:-1, : bits.shape[1]] = bits == 0
    banned[-1] = False
    return banned
