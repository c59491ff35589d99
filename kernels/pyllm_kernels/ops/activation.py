"""The activation of a feed-forward layer."""

from pyllm_kernels import cpu, reference
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Tensor


@op(reference=reference.activation, triton="pyllm_kernels.gpu.elementwise")
def activation(x: Tensor, kind: str, gated: bool = True) -> Tensor:
    """`act(gate) * up` in float32 (arXiv 2002.05202); x [tokens, 2n] is the gate, then up -> [tokens, n] of x's dtype.

    The kind is "silu", "gelu" (by the error function) or "gelu_tanh" (arXiv 1606.08415). Not gated: `act(x)`,
    [tokens, n] -> [tokens, n].
    """
    return cpu.activation(x, kind, gated)
