"""Launches every kernel, on empty tensors in host memory, so that each is compiled as in a worker.

Does not know the results: `offline_driver.py` replaces the card.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from pyllm_kernels import (
    AttentionLayer,
    AttentionMetadata,
    AttentionShape,
    ClampedSwiglu,
    ExpertMatrices,
    PackedLinear,
    QKNorm,
    Router,
    StateRows,
    dtype_name,
)
from pyllm_kernels.cards import Card
from pyllm_kernels.gpu import (
    blocks,
    elementwise,
    expert_routing,
    grouped_experts,
    head_products,
    lora,
    norm,
    rope,
    sampling,
    streams,
)
from pyllm_kernels.gpu.linears import linear_fp8, linear_invariant, linear_w4a16, linear_w8a8, linear_w8a16
from pyllm_kernels.gpu.paged_attention import attention_decode, attention_prefill, attention_tasks
from pyllm_kernels.gpu.paged_attention.attention_tasks import make_tasks
from pyllm_kernels.gpu.paged_attention.attention_tuning import decode_tile, prefill_tile
from pyllm_kernels.gpu.recurrences import (
    causal_convolution,
    delta_chunks,
    gated_delta_rule,
    gated_norm,
    state_space,
    state_tasks,
)
from pyllm_kernels.ops.add_lora import LoraMatrices
from pyllm_kernels.ops.packed_linear import pack_linear

MODULES = (
    norm,
    elementwise,
    rope,
    blocks,
    attention_tasks,
    sampling,
    linear_invariant,
    linear_w4a16,
    linear_w8a16,
    linear_w8a8,
    linear_fp8,
    expert_routing,
    grouped_experts,
    lora,
    attention_prefill,
    attention_decode,
    state_tasks,
    causal_convolution,
    gated_delta_rule,
    delta_chunks,
    state_space,
    gated_norm,
    head_products,
    streams,
)


HEADS, KV_HEADS, HEAD_SIZES = 32, 8, (64, 128, 256, 512)
# Of DeepSeek, and of MiniCPM 3: numbers of a latent and of the rotary part, and query heads on a rank. Decode has tiles
# of 16, 32 and 64 rows.
LATENTS = {512: (64, (16, 20, 128)), 256: (32, (40, 10))}
TOKENS, HIDDEN = 40, 4096
OLDEST_FLOAT8 = 89


class Target(NamedTuple):
    """The target of compilation. `thorough`: every combination, otherwise each choice at least once."""

    capability: int
    dtype: torch.dtype
    thorough: bool

    @property
    def card(self) -> Card:
        return Card(self.capability, 100)


def launch_small_ops(target: Target) -> None:
    hidden = torch.zeros(TOKENS, HIDDEN, dtype=target.dtype)
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
    elementwise.sigmoid_gate(hidden, hidden)
    elementwise.sigmoid_gate(hidden, hidden[:, :1].contiguous())
    launch_streams(hidden)
    positions = torch.zeros(TOKENS, dtype=torch.int32)
    for samples in range(1, 5):  # Parameters of a step are adjacent, so their number determines their alignment.
        ones = torch.ones(5, samples)
        parameters = ones[1], ones[2].view(torch.int32), ones[3], ones[4], ones[0], positions[1 : 1 + samples]
        sampling.sample(torch.zeros(2, 5000, dtype=target.dtype), *parameters)
    launch_rope(target, hidden, positions)


def launch_streams(hidden: torch.Tensor) -> None:
    count = 4
    size = HIDDEN // count
    one, factors = hidden[:, :size].contiguous(), hidden[:, : count * count].contiguous()
    streams.predict_streams(hidden, factors)
    streams.correct_streams(hidden, one, factors[:, :count].contiguous(), 0, one[0])
    streams.add_to_streams(hidden, one)
    streams.match_magnitudes(hidden, one)
    streams.gaussian_top_k(hidden, 1.6)


def launch_rope(target: Target, hidden: torch.Tensor, positions: torch.Tensor) -> None:
    head_size = 128
    query = hidden.view(TOKENS, HEADS, head_size)
    key = torch.zeros(TOKENS, KV_HEADS, head_size, dtype=target.dtype)
    cos_sin = torch.zeros(64, head_size)
    head_norm = QKNorm(cos_sin[0], cos_sin[0], 1e-5)
    caches = caches_of(target, head_size)
    keys, values = caches[0]
    rope.rope_and_kv_write(query, key, key, positions, cos_sin, positions, keys, values)
    blocks.copy_blocks(keys, values, positions.view(-1, 2))
    cache = torch.stack((keys, values))[None]
    for start in range(2):  # Block ids may begin at any address.
        swaps = positions[start : start + 3]
        blocks.gather_blocks(cache, cache[:, :, :1].movedim(2, 0), swaps[::3])
        blocks.scatter_blocks(cache, cache[:, :, :1].movedim(2, 0), swaps[::3])
    for keys_of_dtype, values_of_dtype in caches:
        tables = positions, cos_sin, positions
        rope.rope_and_kv_write(query, key, key, *tables, keys_of_dtype, values_of_dtype, head_norm)
    rope.rope(query, positions, cos_sin)
    after = replace(head_norm, after_rotation=True)
    rope.rope_and_kv_write(query, key, key, positions, cos_sin, positions, keys, values, after)
    # RoPE for a part of each head, or for none.
    for rotary_size in (head_size // 2, 0):
        part = torch.zeros(64, rotary_size)
        arguments = query, key, key, positions, part, positions, keys, values
        rope.rope_and_kv_write(*arguments, query_scales=cos_sin[:, 0].contiguous())


def caches_of(target: Target, head_size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values in the dtype, and in fp8 if the card supports it."""
    keys, values = torch.zeros(2, 64, 16, KV_HEADS, head_size, dtype=target.dtype)
    caches = [(keys, values)]
    if target.capability >= OLDEST_FLOAT8:
        caches.append((keys.to(torch.float8_e4m3fn), values.to(torch.float8_e4m3fn)))
    return caches


def attention_batch() -> AttentionMetadata:
    positions = torch.zeros(TOKENS, dtype=torch.int32)
    return AttentionMetadata(
        block_tables=torch.zeros(4, 64, dtype=torch.int32),
        slots=positions[:2],
        query_starts=positions[:3],
        sequence_lengths=positions[:2],
        max_query_length=39,
        max_sequence_length=1000,
        num_tokens=TOKENS,
    )


def launch_latents(target: Target, rank: int) -> None:
    """Attention over latents, one for all query heads, with the products before and after it."""
    card, dtype = target.card, target.dtype
    start, numbers_of_heads = LATENTS[rank]
    cache = torch.zeros(64, 16, 1, start + rank, dtype=dtype)
    caches = [cache, cache.to(torch.float8_e4m3fn)] if target.capability >= OLDEST_FLOAT8 else [cache]
    layer = AttentionLayer(0.1, value_start=start)
    for heads in numbers_of_heads if target.thorough else numbers_of_heads[-1:]:
        query = torch.zeros(TOKENS, heads, start + rank, dtype=dtype)
        for keys in caches:
            sizes = card, rank, dtype.itemsize, keys.itemsize, True
            prefill, decode = prefill_tile(*sizes), decode_tile(*sizes)
            shape = AttentionShape(heads, 1, start + rank, dtype_name(dtype), value_start=start)
            metadata = attention_batch()
            metadata = replace(metadata, tasks=make_tasks(metadata, shape, prefill, decode, card))
            attention_prefill.prefill_attention(query, keys, keys, metadata, layer, prefill, query)
            attention_decode.decode_attention(query, keys, keys, metadata, layer, decode, query)
        positions, table = torch.zeros(TOKENS, dtype=torch.int32), torch.zeros(64, start)
        key = query[:, :1].contiguous()
        rope.rope_and_kv_write(query, key, key, positions, table, positions, cache, cache)
        for some in (query[:3], query):
            matrices = pack_linear.reference(torch.zeros(heads * 128, rank, dtype=dtype))
            head_products.head_products(some, matrices, False, card=card)
            matrices = pack_linear.reference(torch.zeros(heads * rank, 128, dtype=dtype))
            head_products.head_products(some[..., : start + 128].contiguous(), matrices, True, card=card)


def launch_attention(target: Target, head_size: int) -> None:
    card, dtype = target.card, target.dtype
    query = torch.zeros(TOKENS, HEADS, head_size, dtype=dtype)
    shape = AttentionShape(HEADS, KV_HEADS, head_size, dtype_name(dtype))
    metadata = attention_batch()
    output = torch.empty_like(query)
    plain, sinks = AttentionLayer(0.1), AttentionLayer(0.1, sinks=torch.zeros(HEADS))
    windowed, sloping = AttentionLayer(0.1, window=512, soft_cap=50.0), AttentionLayer(0.1, slopes=sinks.sinks)
    own, *float8 = caches_of(target, head_size)
    if target.thorough:
        pairs = [(cache, layer) for cache in (own, *float8) for layer in (plain, windowed, sinks, sloping)]
    else:
        all_features = replace(windowed, sinks=sinks.sinks, slopes=sloping.slopes)
        pairs = [(own, plain), (own, all_features), *((cache, plain) for cache in float8)]
    for (keys, values), layer in pairs:
        prefill, decode = (tile(card, head_size, dtype.itemsize, keys.itemsize) for tile in (prefill_tile, decode_tile))
        metadata = replace(metadata, tasks=make_tasks(metadata, shape, prefill, decode, card))
        attention_prefill.prefill_attention(query, keys, values, metadata, layer, prefill, output)
        attention_decode.decode_attention(query, keys, values, metadata, layer, decode, output)


def launch_linears(target: Target) -> None:
    hidden = torch.zeros(TOKENS, HIDDEN, dtype=target.dtype)
    linear_invariant.packed_linear(hidden, pack_linear.reference(hidden), card=target.card)
    launch_invariant_linears(hidden, target.card)
    launch_quantised_linears(hidden, target)


def launch_invariant_linears(hidden: torch.Tensor, card: Card) -> None:
    """Launch quantised linears with `batch_invariant`: one version for few rows and many, so one tile."""
    size, name = hidden.shape[1], dtype_name(hidden.dtype)
    bytes_, ones = torch.zeros(size, size, dtype=torch.uint8), torch.ones(size, 1)
    halves = torch.ones(size, size // 32, dtype=torch.float16)
    q4 = PackedLinear(bytes_[:, : size // 2].contiguous(), "q4_0", name, None, (halves, halves))
    fp8 = PackedLinear(bytes_.view(torch.float8_e4m3fn), "float8_e4m3fn", name, None, (ones,), size)
    q8 = PackedLinear(bytes_.view(torch.int8), "q8_0", name, None, (halves,))
    kernels = linear_w4a16._w4a16_kernel, linear_w8a16._w8a16_kernel, linear_fp8._fp8_kernel
    for packed, kernel in zip((q4, q8, fp8), kernels, strict=True):
        for x in (hidden[:3], hidden):
            linear_invariant.packed_linear(x, packed, card=card)
        assert len(kernel.device_caches[0][0]) == 1, f"{packed.format} has several tiles"


def launch_quantised_linears(hidden: torch.Tensor, target: Target) -> None:
    size, card = hidden.shape[1], target.card
    bytes_, ones = torch.zeros(size, size, dtype=torch.uint8), torch.ones(size, size // 128)
    few, many = hidden[:3], hidden  # Few rows use another tile.
    for x, group_size in product((few, many), (32, 128)) if target.thorough else ((few, 32), (many, 128)):
        scales = torch.zeros(size, size // group_size, dtype=torch.float16)
        linear_w4a16.linear_w4a16(x, bytes_[:, : size // 2].contiguous(), scales, scales, card=card)
        linear_w8a16.linear_w8a16(x, bytes_.view(torch.int8), scales, card=card)
    for x in (few, many):
        linear_w8a8.linear_w8a8(x, bytes_.view(torch.int8), torch.zeros(size), card=card)
    blocks_of = (1, torch.zeros(size, 1)), (1, ones), (128, ones[: size // 128])
    pairs = product((few, many), blocks_of) if target.thorough else zip((few, many, many), blocks_of, strict=True)
    for x, (height, scales) in pairs:
        weight = bytes_.view(torch.float8_e4m3fn)
        linear_fp8.linear_fp8(x, weight, scales.contiguous(), block=(height, 128), card=card)


def launch_experts(target: Target) -> None:
    """Launch experts in each format, with few tokens plain or with many, biases and a clamped gate.

    `thorough`: each format with any number of tokens, plain and clamped; otherwise one pair each.
    """
    count, size, dtype, name = 8, 1024, target.dtype, dtype_name(target.dtype)
    rows = count * size
    bytes_, ones = torch.zeros(rows, size, dtype=torch.uint8), torch.ones(rows, size // 128)
    halves = torch.ones(rows, size // 32, dtype=torch.float16)
    router, clamped = Router(count, 2, True, 0, count), ClampedSwiglu(7.0, 1.702)
    formats = (
        pack_linear.reference(bytes_.to(dtype)),
        PackedLinear(bytes_[:, : size // 2].contiguous(), "q4_0", name, None, (halves, halves)),
        PackedLinear(bytes_.view(torch.int8), "q8_0", name, None, (halves,)),
        PackedLinear(bytes_.view(torch.int8), "int8", name, None, (ones[:, 0].contiguous(),)),
        PackedLinear(bytes_.view(torch.float8_e4m3fn), "float8_e4m3fn", name, None, (ones,), 128),
    )
    for number, matrix in enumerate(formats):
        matrices, biases = ExpertMatrices(matrix, matrix, matrix), torch.zeros(count, size, dtype=dtype)
        biased = replace(matrices, gate_bias=biases, up_bias=biases, down_bias=biases)
        for tokens in (1, 100) if target.thorough else ((1, 100)[number % 2],):
            x, logits = torch.zeros(tokens, size, dtype=dtype), torch.zeros(tokens, count, dtype=dtype)
            if tokens == 1 or target.thorough:
                grouped_experts.experts(x, logits, router, "silu", matrices, card=target.card)
            if tokens > 1 or target.thorough:
                grouped_experts.experts(x, logits, router, clamped, biased, card=target.card)


def launch_lora(target: Target) -> None:
    """Launch the products of adapters of few ranks and of many, for layers of one part and of three."""
    x = torch.zeros(TOKENS, HIDDEN, dtype=target.dtype)
    for max_rank, sizes in ((8, (HIDDEN,)), (64, (HIDDEN, HIDDEN // 4, HIDDEN // 4))):
        down = torch.zeros(2, len(sizes) * max_rank, HIDDEN, dtype=target.dtype)
        up = torch.zeros(2, max_rank, sum(sizes), dtype=target.dtype)
        matrices = LoraMatrices(down, up, torch.zeros(2, len(sizes), dtype=torch.int32), sizes)
        adapters, out = torch.zeros(TOKENS, dtype=torch.int32), torch.zeros(TOKENS, sum(sizes), dtype=target.dtype)
        lora.add_lora(x, out, adapters, matrices, card=target.card)


def launch_recurrences(target: Target) -> None:
    """Launch layers with states as they are in LFM2, Qwen3-Next, Kimi Linear, Mamba-2 and Mamba: decodes and chunks."""
    size, width, heads = 2048, 4, HEADS

    def tokens_of(features: int) -> torch.Tensor:
        return torch.zeros(TOKENS, features, dtype=target.dtype)

    def floats(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape)

    for num_rows in (TOKENS, 3):
        numbers = torch.zeros(num_rows + 16, dtype=torch.int32)
        rows = state_tasks.plan_states(StateRows(numbers[: num_rows + 1], *numbers[:num_rows].repeat(2, 1)))
        tail, taps = floats(4, width - 1, size), floats(size, width)
        causal_convolution.causal_convolution(tokens_of(size), taps, None, rows, tail)
        causal_convolution.gated_convolution(tokens_of(3 * size), taps, taps[:, 0].contiguous(), rows, tail)
        qkv, of_heads, head = tokens_of(4 * size + heads * 128), tokens_of(heads), floats(heads)
        for decay, bias in ((of_heads, head), (tokens_of(heads * 128), floats(heads * 128))):
            memory = floats(4, heads, 128, 128)
            gated_delta_rule.gated_delta_rule(qkv, decay, of_heads, head, bias, rows, memory, 32, card=target.card)
        x, b, memory = tokens_of(heads * 64), tokens_of(128), floats(4, heads, 64, 128)
        head_inputs = x, b, b, of_heads, head, head, head
        state_space.state_space(*head_inputs, rows, memory, (0.0, math.inf), card=target.card)
    x, b = tokens_of(size), tokens_of(16)
    of_channels = floats(size), floats(size, 16), floats(size)
    state_space.selective_scan(x, x, b, b, *of_channels, rows, floats(4, size, 16))
    for group_size, gate_first in ((128, False), (size, True)):
        gated_norm.gated_norm(x, x, floats(group_size), 1e-5, group_size, gate_first)
    elementwise.silu_gate(x, x)


CASES: dict[str, Callable[[Target], None]] = {
    "small_ops": launch_small_ops,
    "linears": launch_linears,
    "experts": launch_experts,
    "lora": launch_lora,
    "recurrences": launch_recurrences,
    **{f"attention_{size}": partial(launch_attention, head_size=size) for size in HEAD_SIZES},
    **{f"latents_{rank}": partial(launch_latents, rank=rank) for rank in LATENTS},
}
"""By name; each compiles kernels of its own."""
WIDE_CASES = {"attention_512", *(f"latents_{rank}" for rank in LATENTS)}
"""The cases of heads that `check_card` refuses in float32 on Turing."""
