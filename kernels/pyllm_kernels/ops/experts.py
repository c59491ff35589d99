"""A mixture of experts."""

from pyllm_kernels import cpu, reference
from pyllm_kernels.experts import ClampedSwiglu, ExpertMatrices, Router
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Tensor


@op(reference=reference.experts, triton="pyllm_kernels.gpu.grouped_experts")
def experts(x: Tensor, logits: Tensor, router: Router, kind: str | ClampedSwiglu, matrices: ExpertMatrices) -> Tensor:
    """Mixture of experts (arXiv 1701.06538): the sum of `weight * expert(x)` over the experts chosen for each token.

    x [tokens, hidden] and the router's logits [tokens, experts], of one dtype -> [tokens, hidden]. An expert is
    `down(act(gate(x)) * up(x))`, with activations as in `activation`, or has a clamped gate; biases are added in
    float32. Of equal scores the first experts are chosen. Results are added in float32, in the order of the experts;
    experts of other ranks add nothing. On a CPU a token's result does not depend on other tokens. In Triton, except for
    float32, the number of tokens picks one of two tiles, as for `linear_w4a16`; `batch_invariant` uses one tile, and
    then a token's result does not depend on other tokens.

    Raises `ValueError` for shapes, strides and dtypes that do not fit.
    """
    return cpu.experts(x, logits, router, kind, matrices)
