"""Masks, biases and penalties on logits."""

from pyllm_kernels import cpu, reference
from pyllm_kernels.edits import LogitsEdits
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Tensor


@op(reference=reference.edit_logits, triton="pyllm_kernels.reference")
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
    return cpu.edit_logits(logits, rows, edits, mask_rows, masks, out)
