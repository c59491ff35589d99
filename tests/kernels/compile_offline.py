"""Compiles what the ops launch, for a GPU that need not be there, and prints what became of it: a JSON object a kernel.

A process of its own (`python compile_offline.py CAPABILITY DTYPE`), because it must not see TRITON_INTERPRET.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace

import torch
import triton
from pyllm_kernels import (
    AttentionLayer,
    AttentionMetadata,
    AttentionShape,
    ClampedSwiglu,
    ExpertMatrices,
    PackedLinear,
    QKNorm,
    Router,
    reference,
)
from pyllm_kernels.cards import Card
from pyllm_kernels.gpu import (
    attention_decode,
    attention_prefill,
    attention_tasks,
    blocks,
    elementwise,
    expert_routing,
    grouped_experts,
    linear_fp8,
    linear_invariant,
    linear_w4a16,
    linear_w8a8,
    norm,
    rope,
    sampling,
)
from pyllm_kernels.gpu.attention_tasks import make_tasks
from pyllm_kernels.gpu.attention_tuning import decode_tile, prefill_tile
from triton.backends.compiler import GPUTarget

# Of one program, in bytes (CUDA C++ guide).
SHARED_MEMORY = {75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10}

MODULES = (
    norm,
    elementwise,
    rope,
    blocks,
    attention_tasks,
    sampling,
    linear_invariant,
    linear_w4a16,
    linear_w8a8,
    linear_fp8,
    expert_routing,
    grouped_experts,
    attention_prefill,
    attention_decode,
)


class OfflineDriver:
    """Stands where Triton expects the CUDA driver; a loaded kernel does nothing when it is launched."""

    def __init__(self, capability: int) -> None:
        self.capability = capability
        self.utils = self

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, source: object, metadata: object) -> Callable[..., None]:
        return lambda *arguments: None

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED_MEMORY[self.capability]}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        return 1, 1, 0, 0, 1024

    def unload_module(self, module: int) -> None:
        pass


def launch_everything(capability: int, dtype: torch.dtype) -> None:
    tokens, heads, kv_heads, head_dim, block_size = 40, 32, 8, 128, 16
    hidden = torch.zeros(tokens, heads * head_dim, dtype=dtype)
    norm.rms_norm(hidden, hidden[0], 1e-5)
    norm.add_rms_norm(hidden, hidden, hidden[0], 1e-5)
    norm.layer_norm(hidden, hidden[0], 1e-5)
    norm.add_layer_norm(hidden, hidden, hidden[0], 1e-5, 0.5)
    norm.add(hidden, hidden, 0.5)
    for kind in ("silu", "gelu", "gelu_tanh"):
        elementwise.activation(hidden, kind)
        elementwise.activation(hidden, kind, False)
    elementwise.add_bias(hidden, hidden[0])
    elementwise.scale_and_cap(hidden, 2.0)
    elementwise.scale_and_cap(hidden, 2.0, 30.0)
    linear_invariant.packed_linear(hidden, reference.pack_linear(hidden))
    launch_invariant_linears(hidden)
    launch_quantised_linears(hidden, Card(capability, 100))
    launch_experts(dtype, Card(capability, 100))
    query = hidden.view(tokens, heads, head_dim)
    key = torch.zeros(tokens, kv_heads, head_dim, dtype=dtype)
    key_cache, value_cache = torch.zeros(2, 64, block_size, kv_heads, head_dim, dtype=dtype)
    positions = torch.zeros(tokens, dtype=torch.int32)
    for samples in range(1, 5):  # Parameters of a step lie side by side: where one begins follows from their number.
        ones = torch.ones(5, samples)
        parameters = ones[1], ones[2].view(torch.int32), ones[3], ones[4], ones[0], positions[1 : 1 + samples]
        sampling.sample(torch.zeros(2, 5000, dtype=dtype), *parameters)
    cos_sin = torch.zeros(64, head_dim)
    rope.rope_and_kv_write(query, key, key, positions, cos_sin, positions, key_cache, value_cache)
    blocks.copy_blocks(key_cache, value_cache, positions.view(-1, 2))
    card = Card(capability, 100)
    shape = AttentionShape(heads, kv_heads, head_dim, dtype)
    prefill, decode = (tile(card, head_dim, dtype.itemsize) for tile in (prefill_tile, decode_tile))
    metadata = AttentionMetadata(
        block_tables=torch.zeros(4, 64, dtype=torch.int32),
        slots=positions[:2],
        query_starts=positions[:3],
        sequence_lengths=positions[:2],
        max_query_length=39,
        max_sequence_length=1000,
        num_tokens=tokens,
    )
    metadata = replace(metadata, tasks=make_tasks(metadata, shape, prefill, decode, card))
    output = torch.empty_like(query)
    caches = [(key_cache, value_cache)]
    if capability >= 89:
        caches.append((key_cache.to(torch.float8_e4m3fn), value_cache.to(torch.float8_e4m3fn)))
    for keys, values in caches:
        sinks = AttentionLayer(0.1, sinks=torch.zeros(heads))
        for layer in (AttentionLayer(0.1), AttentionLayer(0.1, window=512, soft_cap=50.0), sinks):
            attention_prefill.prefill_attention(query, keys, values, metadata, layer, prefill, output)
            attention_decode.decode_attention(query, keys, values, metadata, layer, decode, output)
        head_norm = QKNorm(cos_sin[0], cos_sin[0], 1e-5)
        rope.rope_and_kv_write(query, key, key, positions, cos_sin, positions, keys, values, head_norm)
    # A part of each head rotates, or nothing does.
    for rotary_size in (head_dim // 2, 0):
        part = torch.zeros(64, rotary_size)
        arguments = query, key, key, positions, part, positions, key_cache, value_cache
        rope.rope_and_kv_write(*arguments, query_scales=cos_sin[:, 0].contiguous())


def launch_invariant_linears(hidden: torch.Tensor) -> None:
    """Quantised weights under `batch_invariant`: one version of a kernel for few rows and many, so one tile."""
    size, dtype = hidden.shape[1], hidden.dtype
    bytes_, ones = torch.zeros(size, size, dtype=torch.uint8), torch.ones(size, 1)
    halves = torch.ones(size, size // 32, dtype=torch.float16)
    q4 = PackedLinear(bytes_[:, : size // 2].contiguous(), "q4_0", dtype, None, (halves, halves))
    fp8 = PackedLinear(bytes_.view(torch.float8_e4m3fn), "float8_e4m3fn", dtype, None, (ones,), size)
    for packed, kernel in ((q4, linear_w4a16._w4a16_kernel), (fp8, linear_fp8._fp8_kernel)):
        for x in (hidden[:3], hidden):
            linear_invariant.packed_linear(x, packed)
        assert len(kernel.device_caches[0][0]) == 1, f"{packed.format} has several tiles"


def launch_quantised_linears(hidden: torch.Tensor, card: Card) -> None:
    size = hidden.shape[1]
    bytes_ = torch.zeros(size, size, dtype=torch.uint8)
    for x in (hidden[:3], hidden):  # Few rows have a tile of their own.
        for group_size in (32, 128):
            scales = torch.zeros(size, size // group_size, dtype=torch.float16)
            linear_w4a16.linear_w4a16(x, bytes_[:, : size // 2].contiguous(), scales, scales)
        linear_w8a8.linear_w8a8(x, bytes_.view(torch.int8), torch.zeros(size), card=card)
        for scales in (torch.zeros(size, 1), torch.zeros(size // 128, size // 128)):
            linear_fp8.linear_fp8(x, bytes_.view(torch.float8_e4m3fn), scales)


def launch_experts(dtype: torch.dtype, card: Card) -> None:
    """Experts in each format, with few tokens and with many; and with biases and a clamped gate."""
    count, size = 8, 1024
    rows = count * size
    bytes_, ones = torch.zeros(rows, size, dtype=torch.uint8), torch.ones(rows, size // 128)
    halves = torch.ones(rows, size // 32, dtype=torch.float16)
    for matrix in (
        reference.pack_linear(bytes_.to(dtype)),
        PackedLinear(bytes_[:, : size // 2].contiguous(), "q4_0", dtype, None, (halves, halves)),
        PackedLinear(bytes_.view(torch.int8), "int8", dtype, None, (ones[:, 0].contiguous(),)),
        PackedLinear(bytes_.view(torch.float8_e4m3fn), "float8_e4m3fn", dtype, None, (ones,), 128),
    ):
        for tokens in (1, 100):
            x, logits = torch.zeros(tokens, size, dtype=dtype), torch.zeros(tokens, count, dtype=dtype)
            router = Router(count, 2, True, 0, count)
            matrices, biases = ExpertMatrices(matrix, matrix, matrix), torch.zeros(count, size, dtype=dtype)
            biased = replace(matrices, gate_bias=biases, up_bias=biases, down_bias=biases)
            grouped_experts.experts(x, logits, router, "silu", matrices, card=card)
            grouped_experts.experts(x, logits, router, ClampedSwiglu(7.0, 1.702), biased, card=card)


def main(capability: int, dtype: torch.dtype) -> None:
    triton.runtime.driver.set_active(OfflineDriver(capability))
    launch_everything(capability, dtype)
    for module in MODULES:
        for function in vars(module).values():
            if isinstance(function, triton.JITFunction) and function.device_caches:
                for kernel in function.device_caches[0][0].values():
                    ptx = kernel.asm["ptx"]
                    report = {
                        "kernel": kernel.name,
                        "shared": kernel.metadata.shared,
                        "warpgroup_mma": "wgmma" in ptx,
                        "mma": "mma.sync" in ptx,
                    }
                    print(json.dumps(report))


if __name__ == "__main__":
    main(int(sys.argv[1]), getattr(torch, sys.argv[2]))
