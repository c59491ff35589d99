"""The choice of a backend, by name or by the tensors' device.

Does not know the computation of any op, and imports Triton only when it is selected.
"""

import functools
from dataclasses import replace

import torch

from pyllm_kernels import cpu, cpu_linear, paged_reference, reference
from pyllm_kernels.backend import Kernels


class BackendError(ValueError):
    """A backend that does not exist, or cannot run on the device."""


@functools.cache
def select(backend: str, device: torch.device | str) -> Kernels:
    """The ops of a backend: "reference" (torch, any device), "cpu" (Rust), "triton"; "auto": Triton on CUDA, else cpu.

    Raises `BackendError` for an unknown name, for "triton" if Triton can neither compile nor interpret, and for "cpu"
    on any other device.
    """
    device_type = torch.device(device).type
    if backend == "auto":
        backend = "triton" if device_type == "cuda" else "cpu"
    if backend == "reference":
        return _reference()
    if backend == "cpu":
        return _cpu(device_type)
    if backend == "triton":
        return _triton(device_type)
    raise BackendError(f"unknown kernel backend {backend!r}: choose auto, cpu, reference or triton")


def batch_invariant(kernels: Kernels) -> Kernels:
    """The ops with batch-invariant linears and experts on GPUs, too: a row's result does not depend on the other rows.

    Attention reads this from its metadata; the other ops work row by row.
    """
    if kernels.backend != "triton":
        return kernels
    from pyllm_kernels.gpu import grouped_experts, linear_invariant

    experts_alone = functools.partial(grouped_experts.experts, batch_invariant=True)
    return replace(kernels, packed_linear=linear_invariant.packed_linear, experts=experts_alone)


def _reference() -> Kernels:
    return Kernels(
        backend="reference",
        pack_linear=reference.pack_linear,
        kept_format=cpu_linear.kept_format,
        pack_rows=reference.pack_rows,
        packed_linear=reference.packed_linear,
        packed_rows=reference.packed_rows,
        linear_w4a16=reference.linear_w4a16,
        linear_w8a16=reference.linear_w8a16,
        linear_w8a8=reference.linear_w8a8,
        linear_fp8=reference.linear_fp8,
        rms_norm=reference.rms_norm,
        add_rms_norm=reference.add_rms_norm,
        layer_norm=reference.layer_norm,
        add_layer_norm=reference.add_layer_norm,
        add=reference.add,
        add_bias=reference.add_bias,
        scale_and_cap=reference.scale_and_cap,
        rope_and_kv_write=paged_reference.rope_and_kv_write,
        activation=reference.activation,
        experts=reference.experts,
        plan_attention=paged_reference.plan_attention,
        paged_attention=paged_reference.paged_attention,
        score_blocks=paged_reference.score_blocks,
        select_blocks=paged_reference.select_blocks,
        copy_blocks=paged_reference.copy_blocks,
        swap_blocks=paged_reference.swap_blocks,
        gather_blocks=paged_reference.gather_blocks,
        scatter_blocks=paged_reference.scatter_blocks,
        edit_logits=reference.edit_logits,
        logprobs=reference.logprobs,
    )


def _cpu(device_type: str) -> Kernels:
    if device_type != "cpu":
        raise BackendError(f"the cpu backend runs on cpu, not on {device_type}: use triton or the reference")
    return replace(
        _reference(),
        backend="cpu",
        pack_linear=cpu_linear.pack_linear,
        pack_rows=cpu_linear.pack_rows,
        packed_linear=cpu_linear.packed_linear,
        packed_rows=cpu_linear.packed_rows,
        rms_norm=cpu.rms_norm,
        add_rms_norm=cpu.add_rms_norm,
        layer_norm=cpu.layer_norm,
        add_layer_norm=cpu.add_layer_norm,
        add=cpu.add,
        add_bias=cpu.add_bias,
        scale_and_cap=cpu.scale_and_cap,
        rope_and_kv_write=cpu.rope_and_kv_write,
        activation=cpu.activation,
        experts=cpu.experts,
        paged_attention=cpu.paged_attention,
        score_blocks=cpu.score_blocks,
        select_blocks=cpu.select_blocks,
        copy_blocks=cpu.copy_blocks,
        edit_logits=cpu.edit_logits,
        logprobs=cpu.logprobs,
    )


def _triton(device_type: str) -> Kernels:
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
        from pyllm_kernels.interpreter import order_products

        order_products()
    from pyllm_kernels.gpu import (
        attention,
        blocks,
        elementwise,
        grouped_experts,
        linear_fp8,
        linear_packed,
        linear_w4a16,
        linear_w8a8,
        linear_w8a16,
        norm,
        rope,
    )

    return Kernels(
        backend="triton",
        pack_linear=reference.pack_linear,  # cuBLAS multiplies floats.
        kept_format=linear_packed.kept_format,
        pack_rows=linear_packed.pack_rows,
        packed_linear=linear_packed.packed_linear,
        packed_rows=linear_packed.packed_rows,
        linear_w4a16=linear_w4a16.linear_w4a16,
        linear_w8a16=linear_w8a16.linear_w8a16,
        linear_w8a8=linear_w8a8.linear_w8a8,
        linear_fp8=linear_fp8.linear_fp8,
        rms_norm=norm.rms_norm,
        add_rms_norm=norm.add_rms_norm,
        layer_norm=norm.layer_norm,
        add_layer_norm=norm.add_layer_norm,
        add=norm.add,
        add_bias=elementwise.add_bias,
        scale_and_cap=elementwise.scale_and_cap,
        rope_and_kv_write=rope.rope_and_kv_write,
        activation=elementwise.activation,
        experts=grouped_experts.experts,
        plan_attention=attention.plan_attention,
        paged_attention=attention.paged_attention,
        # They read the rows on the host; the engine refuses sparse attention on GPUs.
        score_blocks=paged_reference.score_blocks,
        select_blocks=paged_reference.select_blocks,
        copy_blocks=blocks.copy_blocks,
        swap_blocks=paged_reference.swap_blocks,  # A copy over PCIe needs no kernel.
        gather_blocks=blocks.gather_blocks,
        scatter_blocks=blocks.scatter_blocks,
        edit_logits=reference.edit_logits,
        logprobs=reference.logprobs,
    )
