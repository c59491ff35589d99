"""The table of figures: the cases, their counts of bytes and operations, and their goals.

Times come from a timer that is passed in, so that the arithmetic can be tested without a card.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypedDict

import torch
from pyllm_kernels import AttentionShape, ExpertMatrices, Kernels, LogitsEdits, Router, dtype_name
from pyllm_kernels.ops.activation import activation
from pyllm_kernels.ops.edit_logits import edit_logits
from pyllm_kernels.ops.experts import experts
from pyllm_kernels.ops.logprobs import logprobs
from pyllm_kernels.ops.norm import add_rms_norm, rms_norm
from pyllm_kernels.ops.packed_linear import pack_linear
from pyllm_kernels.ops.paged_attention import paged_attention, plan_attention
from torch.nn import functional as F

from benchmarks.gpu.batches import PagedBatch, paged_batch
from benchmarks.gpu.timing import Timer


class Figure(TypedDict, total=False):
    """One line. `share` is relative to the yardstick; `met` compares `value` or `share` with `goal`."""

    name: str
    case: str
    value: float
    unit: str
    share: float
    goal: float
    met: bool


@dataclass(frozen=True)
class Yardstick:
    """The card's best measured rates."""

    bandwidth: float  # bytes per second of a copy
    matrix_rate: float  # operations per second


@dataclass(frozen=True)
class Bench:
    """The device and settings of figures."""

    kernels: Kernels
    device: torch.device
    dtype: torch.dtype
    timer: Timer
    yardstick: Yardstick


# Rows, tokens in the cache of each, and the goal for decode attention as a share of the copy bandwidth.
DECODES = {
    "1x1k": (1, 1024, None),
    "1x32k": (1, 32_768, 0.75),
    "16x1k": (16, 1024, 0.60),
    "16x8k": (16, 8192, 0.85),
    "64x1k": (64, 1024, None),
    "64x4k": (64, 4096, 0.88),
    "256x1k": (256, 1024, 0.85),
}
# Prompt tokens, block size, whether blocks are in order, and the goal for prefill on an H200 in operations a second.
PREFILLS = {
    "dense 8k": (8192, 128, True, 400e12),
    "dense 16k": (16_384, 128, True, 400e12),
    "paged 8k": (8192, 16, False, 350e12),
    "paged 16k": (16_384, 16, False, 350e12),
}
LLAMA = (32, 8, 128)  # heads, KV heads, head_dim
QWEN3_30B = (128, 8, 2048, 768)  # experts, those of a token, hidden size, features of an expert
EXPERT_TOKENS = (1, 16, 64, 256, 8192)
_FEW_TOKENS = 64  # Up to here the time is that of reading the weights.


def attention_shape(dtype: torch.dtype) -> AttentionShape:
    """The shape of Llama-3.1-8B; the goals are for its KV heads and head_dim."""
    return AttentionShape(*LLAMA, dtype_name(dtype))


def decode_bytes(shape: AttentionShape, num_rows: int, context: int, item_bytes: int) -> int:
    """Bytes of keys and values that decode attention must read."""
    return 2 * num_rows * context * shape.kv_heads * shape.head_dim * item_bytes


def prefill_operations(shape: AttentionShape, length: int) -> float:
    """Operations of causal attention over a whole prompt: two products, half of each masked, as usual."""
    return 4 * shape.heads * shape.head_dim * length * length / 2


def decode_attention(bench: Bench, cases: dict[str, tuple[int, int, float | None]] = DECODES) -> Iterator[Figure]:
    """Decode attention in the model's dtype; the task map, made once a step, has a separate figure."""
    shape = attention_shape(bench.dtype)
    for name, (num_rows, context, goal) in cases.items():
        batch = _decode_batch(bench, shape, num_rows, context, bench.dtype)
        seconds = bench.timer(partial(_attend, bench.kernels, batch))
        yield _of_bandwidth(
            bench,
            ("decode_attention", name),
            seconds,
            decode_bytes(shape, num_rows, context, bench.dtype.itemsize),
            goal,
        )
        metadata = replace(batch.metadata, tasks=None)
        seconds = bench.timer(partial(bench.kernels[plan_attention], metadata, shape))
        yield {"name": "gpu.attention_tasks", "case": name, "value": round(seconds * 1e6, 2), "unit": "us"}


def decode_attention_float8(
    bench: Bench, cases: dict[str, tuple[int, int, float | None]] = DECODES
) -> Iterator[Figure]:
    """Decode attention over an fp8 cache, with half the bytes."""
    shape = attention_shape(bench.dtype)
    for name, (num_rows, context, _) in cases.items():
        batch = _decode_batch(bench, shape, num_rows, context, torch.float8_e4m3fn)
        seconds = bench.timer(partial(_attend, bench.kernels, batch))
        num_bytes = decode_bytes(shape, num_rows, context, 1)
        yield _of_bandwidth(bench, ("decode_attention_fp8", name), seconds, num_bytes)


def prefill_attention(bench: Bench, cases: dict[str, tuple[int, int, bool, float]] = PREFILLS) -> Iterator[Figure]:
    """Prefill attention of whole prompts."""
    shape = attention_shape(bench.dtype)
    for name, (length, block_size, in_order, goal) in cases.items():
        batch = paged_batch([(length, 0)], shape, bench.device, block_size=block_size, in_order=in_order)
        batch = replace(batch, metadata=bench.kernels[plan_attention](batch.metadata, shape))
        seconds = bench.timer(partial(_attend, bench.kernels, batch))
        yield _of_matrix_rate(bench, ("prefill_attention", name), seconds, prefill_operations(shape, length), goal)


def torch_attention(bench: Bench, length: int) -> Iterator[Figure]:
    """torch's attention, for comparison, over contiguous keys and values."""
    shape = attention_shape(bench.dtype)
    query = torch.randn(1, shape.heads, length, shape.head_dim, dtype=bench.dtype, device=bench.device)
    key, value = torch.randn(2, 1, shape.kv_heads, length, shape.head_dim, dtype=bench.dtype, device=bench.device)
    attend = partial(F.scaled_dot_product_attention, query, key, value, is_causal=True, enable_gqa=True)
    case = ("torch_attention", f"{length} dense")
    yield _of_matrix_rate(bench, case, bench.timer(attend), prefill_operations(shape, length))


def small_ops(bench: Bench, num_tokens: int = 8192, hidden: int = 4096) -> Iterator[Figure]:
    """The ops between the products, bound by the bytes that they read and write."""
    kernels, item = bench.kernels, bench.dtype.itemsize
    x, residual = torch.randn(2, num_tokens, hidden, dtype=bench.dtype, device=bench.device)
    weight = torch.ones(hidden, dtype=bench.dtype, device=bench.device)
    case, num_bytes = f"{num_tokens}x{hidden}", num_tokens * hidden * item
    seconds = bench.timer(lambda: kernels[rms_norm](x, weight, 1e-5))
    yield _of_bandwidth(bench, ("rms_norm", case), seconds, 2 * num_bytes)
    seconds = bench.timer(lambda: kernels[add_rms_norm](x, residual, weight, 1e-5))
    yield _of_bandwidth(bench, ("add_rms_norm", case), seconds, 4 * num_bytes)
    wide = torch.randn(num_tokens, 4 * hidden, dtype=bench.dtype, device=bench.device)
    seconds = bench.timer(lambda: kernels[activation](wide, "silu"))
    yield _of_bandwidth(bench, ("activation", f"{num_tokens}x{2 * hidden}"), seconds, 6 * num_bytes)


def expert_figures(
    bench: Bench, shape: tuple[int, int, int, int] = QWEN3_30B, cases: tuple[int, ...] = EXPERT_TOKENS
) -> Iterator[Figure]:
    """A layer of experts in the model's dtype, with random tokens and logits."""
    num_experts, active, hidden, size = shape

    def matrix(outputs: int, features: int) -> torch.Tensor:
        weight = torch.randn(num_experts * outputs, features, dtype=bench.dtype, device=bench.device)
        return weight.mul_(features**-0.5)

    weights = matrix(size, hidden), matrix(size, hidden), matrix(hidden, size)
    matrices = ExpertMatrices(*map(bench.kernels[pack_linear], weights))
    router = Router(num_experts, active, True, 0, num_experts)
    for tokens in cases:
        x = torch.randn(tokens, hidden, dtype=bench.dtype, device=bench.device)
        logits = torch.randn(tokens, num_experts, dtype=bench.dtype, device=bench.device)
        seconds = bench.timer(partial(bench.kernels[experts], x, logits, router, "silu", matrices))
        label = ("experts", f"{tokens} tokens")
        if tokens <= _FEW_TOKENS:
            taken = len(logits.topk(active).indices.unique())
            yield _of_bandwidth(bench, label, seconds, 3 * taken * hidden * size * bench.dtype.itemsize)
        else:
            yield _of_matrix_rate(bench, label, seconds, 6.0 * tokens * active * hidden * size)


def sampling(bench: Bench, rows: int = 128, vocabulary: int = 131_072) -> Iterator[Figure]:
    """Sampling from rows of realistic logits, with top-k, top-p, both and neither."""
    from pyllm_kernels.gpu.sampling import sample

    logits = torch.randn(rows, vocabulary, dtype=bench.dtype, device=bench.device) * 3
    ones = torch.ones(rows, device=bench.device)
    every_row = torch.arange(rows, dtype=torch.int32, device=bench.device)
    uniforms = torch.rand(rows, device=bench.device)
    for cut, k, p in (("none", 0, 1.0), ("top-k 50", 50, 1.0), ("top-p 0.9", 0, 0.9), ("both", 50, 0.9)):
        top_k = torch.full((rows,), k, dtype=torch.int32, device=bench.device)
        arguments = logits, ones, top_k, ones * p, ones * 0, uniforms, every_row
        seconds = bench.timer(partial(sample, *arguments))
        yield _in_time("sampling", f"{rows}x{vocabulary}, {cut}", seconds, 0.3e-3)


def logits_ops(bench: Bench, rows: int = 128, vocabulary: int = 131_072, edits: int = 1000) -> Iterator[Figure]:
    """Logits ops for a batch in which every row needs them: edits and a mask, and the five likeliest tokens."""
    logits = torch.randn(rows, vocabulary, dtype=bench.dtype, device=bench.device) * 3
    every_row = torch.arange(rows, dtype=torch.int32, device=bench.device)
    starts = torch.arange(rows + 1, dtype=torch.int32, device=bench.device) * edits
    ids = torch.arange(edits, dtype=torch.int32, device=bench.device).repeat(rows)
    numbers = torch.rand(3, len(ids), device=bench.device)
    columns = LogitsEdits(starts, ids, numbers[0], numbers[1] + 0.5, numbers[2])
    masks = torch.randint(-(2**31), 2**31 - 1, (rows, -(-vocabulary // 32)), dtype=torch.int32, device=bench.device)
    calls = {
        "edit_logits": partial(edit_logits, logits, every_row, columns, every_row, masks),
        "logprobs": partial(logprobs, logits, every_row, every_row, 5),
    }
    for name, call in calls.items():
        value = round(bench.timer(call) * 1e3, 3)
        yield {"name": f"gpu.{name}", "case": f"{rows}x{vocabulary}", "value": value, "unit": "ms"}


def _decode_batch(
    bench: Bench, shape: AttentionShape, num_rows: int, context: int, cache_dtype: torch.dtype
) -> PagedBatch:
    batch = paged_batch([(1, context - 1)] * num_rows, shape, bench.device, cache_dtype=cache_dtype)
    shape = replace(shape, cache_dtype=dtype_name(cache_dtype))
    return replace(batch, metadata=bench.kernels[plan_attention](batch.metadata, shape))


def _attend(kernels: Kernels, batch: PagedBatch) -> torch.Tensor:
    return kernels[paged_attention](batch.query, batch.key_cache, batch.value_cache, batch.metadata, batch.layer)


def _of_bandwidth(
    bench: Bench, label: tuple[str, str], seconds: float, num_bytes: float, goal: float | None = None
) -> Figure:
    share = num_bytes / seconds / bench.yardstick.bandwidth
    figure: Figure = {
        "name": f"gpu.{label[0]}",
        "case": label[1],
        "value": round(seconds * 1e6, 2),
        "unit": "us",
        "share": round(share, 3),
    }
    if goal is not None:
        figure.update(goal=goal, met=share >= goal)
    return figure


def _of_matrix_rate(
    bench: Bench, label: tuple[str, str], seconds: float, operations: float, goal: float | None = None
) -> Figure:
    rate = operations / seconds
    figure: Figure = {
        "name": f"gpu.{label[0]}",
        "case": label[1],
        "value": round(rate / 1e12, 1),
        "unit": "TFLOP/s",
        "share": round(rate / bench.yardstick.matrix_rate, 3),
    }
    if goal is not None:
        figure.update(goal=goal / 1e12, met=rate >= goal)
    return figure


def _in_time(name: str, case: str, seconds: float, goal: float) -> Figure:
    value = round(seconds * 1e3, 3)
    return {
        "name": f"gpu.{name}",
        "case": case,
        "value": value,
        "unit": "ms",
        "goal": goal * 1e3,
        "met": seconds <= goal,
    }
