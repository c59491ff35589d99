"""The choice of a backend, by name or by the device. Imports Triton only when it is selected."""

import functools
from typing import Any

from pyllm_kernels.op import BackendError, Kernels


@functools.cache
def select(backend: str, device: Any) -> Kernels:
    """The ops of a backend: "reference" (any device), "cpu" (Rust), "triton"; "auto": Triton on CUDA, else cpu.

    `device` is a device of torch, or the name of one.

    Raises:
        BackendError: the name is unknown, Triton can neither compile nor interpret, or the cpu backend is for another
            device.
    """
    device_type = str(device).partition(":")[0]
    if backend == "auto":
        backend = "triton" if device_type == "cuda" else "cpu"
    if backend not in {"cpu", "reference", "triton"}:
        raise BackendError(f"unknown kernel backend {backend!r}: choose auto, cpu, reference or triton")
    if backend == "cpu" and device_type != "cpu":
        raise BackendError(f"the cpu backend runs on cpu, not on {device_type}: use triton or the reference")
    if backend == "triton":
        _check_triton(device_type)
    return Kernels(backend)


def batch_invariant(kernels: Kernels) -> Kernels:
    """The ops with batch-invariant products and experts on GPUs, too: a row's result does not depend on the other rows.

    Recurrences go token by token, so that cuts of a sequence change nothing either. Attention reads this from its
    metadata; the other ops work row by row.
    """
    if kernels.backend != "triton":
        return kernels
    from pyllm_kernels.gpu import grouped_experts
    from pyllm_kernels.gpu import head_products as products_of_heads
    from pyllm_kernels.gpu.linears import linear_invariant
    from pyllm_kernels.gpu.recurrences import gated_delta_rule, state_space
    from pyllm_kernels.ops import gated_delta_rule as delta_op
    from pyllm_kernels.ops import state_space as space_op
    from pyllm_kernels.ops.experts import experts
    from pyllm_kernels.ops.head_products import head_products
    from pyllm_kernels.ops.packed_linear import packed_linear

    kernels = kernels.replaced(packed_linear, linear_invariant.packed_linear)
    for op, version in (
        (experts, grouped_experts.experts),
        (head_products, products_of_heads.head_products),
        (delta_op.gated_delta_rule, gated_delta_rule.gated_delta_rule),
        (space_op.state_space, state_space.state_space),
    ):
        kernels = kernels.replaced(op, functools.partial(version, batch_invariant=True))
    return kernels


def _check_triton(device_type: str) -> None:
    try:
        import triton
    except ModuleNotFoundError as error:
        raise BackendError("the triton backend needs Triton, which is not installed: use the reference") from error
    if device_type != "cuda" and not triton.knobs.runtime.interpret:
        raise BackendError(
            f"the triton backend runs on cuda, not on {device_type}: use the reference, or set TRITON_INTERPRET=1 "
            "before the start to run it, slowly, in Triton's interpreter"
        )
    if triton.knobs.runtime.interpret:
        from pyllm_kernels.interpreter import prepare

        prepare()
