"""Log-probabilities of tokens."""

from pyllm_kernels import cpu, reference
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Tensor


@op(reference=reference.logprobs, triton="pyllm_kernels.reference")
def logprobs(logits: Tensor, rows: Tensor, chosen: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of a token for each sample, and of the likeliest tokens, from unedited logits.

    logits [rows, vocabulary], with a finite maximum; rows and chosen int32 [samples], the row and token of each sample
    -> ids int32 and values float32 [samples, 1 + num_top], ranks int32 [samples]. The token itself comes first,
    then the likeliest, best first, the lower id first among equals. The rank is the number of logits that are at least
    as great as the token's. A row's result does not depend on other rows, also on a GPU; a NaN counts as minus
    infinity.
    """
    return cpu.logprobs(logits, rows, chosen, num_top)
