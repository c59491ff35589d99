"""Every Triton kernel against torch on one device, in each dtype that the device has.

Also checks without a reference: rows that are the same alone, and ops that a CUDA graph can hold. Raises no errors: a
kernel that fails to compile is a failed check.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from pyllm_kernels import (
    AttentionShape,
    ExpertMatrices,
    Kernels,
    KVScales,
    LogitsEdits,
    PackedLinear,
    QKNorm,
    Router,
    batch_invariant,
    dtype_name,
)
from pyllm_kernels.ops.activation import activation
from pyllm_kernels.ops.blocks import copy_blocks, gather_blocks, scatter_blocks
from pyllm_kernels.ops.edit_logits import edit_logits
from pyllm_kernels.ops.experts import experts
from pyllm_kernels.ops.head_products import head_products
from pyllm_kernels.ops.linear_fp8 import linear_fp8
from pyllm_kernels.ops.linear_w4a16 import linear_w4a16
from pyllm_kernels.ops.linear_w8a8 import linear_w8a8
from pyllm_kernels.ops.linear_w8a16 import linear_w8a16
from pyllm_kernels.ops.logprobs import logprobs
from pyllm_kernels.ops.norm import add_rms_norm, rms_norm
from pyllm_kernels.ops.packed_linear import pack_linear, packed_linear
from pyllm_kernels.ops.paged_attention import paged_attention
from pyllm_kernels.ops.rope_and_kv_write import rope_and_kv_write
from pyllm_kernels.ops.streams import (
    add_to_streams,
    correct_streams,
    gaussian_top_k,
    join_streams,
    match_magnitudes,
    predict_streams,
)
from torch import Tensor

from benchmarks.gpu.batches import PagedBatch, paged_batch

Pairs = list[tuple[Tensor, Tensor]]
Size = tuple[int, ...]
Linear = Callable[[Tensor], Tensor]
Checks = dict[str, tuple[Callable[["Setting"], Pairs], float | None]]
# Two or three rounding errors of a row's largest number; a kernel and its reference may differ by one of any number.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2.5e-3, torch.bfloat16: 2e-2}
BITWISE = 0.0
_FLOAT8_STEP = 0.13  # Between two neighbours of e4m3, which Triton and torch may round to.


@dataclass(frozen=True)
class Setting:
    """The device and the sizes of a check: small in Triton's interpreter, which takes milliseconds for a tile."""

    triton: Kernels
    reference: Kernels
    device: torch.device
    dtype: torch.dtype
    small: bool

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(shape, dtype=self.dtype, device=self.device)

    def sizes(self, odd: Size, of_llama: Size) -> list[Size]:
        """The sizes of a case: odd ones, and on a card those of Llama-3.1-8B."""
        return [odd] if self.small else [odd, of_llama]


@dataclass(frozen=True)
class Result:
    """The result of a check: `error` is the largest difference relative to its row's largest number, or the exception.

    A row is the last dimension: the more positions attention averages, the smaller all of its numbers are.
    """

    name: str
    dtype: str
    ok: bool
    error: float | str


def checks(setting: Setting, float8: bool) -> Checks:
    """All checks, with the tolerance if it is not that of the dtype."""
    found: Checks = {
        "norm": (_norms, None),
        "activation": (_activation, None),
        "rope": (_rope, None),
        "qk_norm_rope": (_qk_norm_rope, None),
        "attention": (_attention, None),
        "attention_padded": (_attention_padded, None),
        "attention_invariant": (_attention_invariant, None),
        "attention_rows_alone": (_attention_rows_alone, BITWISE),
        "attention_wide": (_attention_wide, None),
        "latents": (_latents, None),
        "latents_rows_alone": (_latents_rows_alone, BITWISE),
        "head_products": (_head_products, None),
        "head_products_rows_alone": (_head_products_rows_alone, BITWISE),
        "streams": (_streams, None),
        "linear_invariant": (_linear_invariant, None),
        "linear_rows_alone": (_linear_rows_alone, BITWISE),
        "linear_quantised": (_linear_quantised, None),
        "linear_quantised_rows_alone": (_linear_quantised_rows_alone, BITWISE),
        "experts": (_experts, None),
        "experts_rows_alone": (_experts_rows_alone, BITWISE),
        "copy_blocks": (_copy_blocks, BITWISE),
        "stage_blocks": (_stage_blocks, BITWISE),
        "edit_logits": (_edit_logits, BITWISE),
        "logprobs": (_logprobs, 1e-5),
        "sampling": (_sampling, BITWISE),
    }
    if float8:
        found["attention_fp8"] = (_attention_float8, None)
        found["latents_fp8"] = (_latents_float8, None)
    if setting.device.type == "cuda":
        if float8:
            found["write_fp8"] = (_write_float8, _FLOAT8_STEP)
        found["attention_in_graph"] = (_attention_in_graph, None)
        found["experts_in_graph"] = (_experts_in_graph, BITWISE)
        found["no_synchronisation"] = (_no_synchronisation, None)
    return found


def judge(setting: Setting, found: Checks) -> Iterator[Result]:
    """The result of each check."""
    dtype = dtype_name(setting.dtype)
    for name, (check, tolerance) in found.items():
        try:
            error = max((_difference(actual, expected) for actual, expected in check(setting)), default=0.0)
        except Exception as raised:  # noqa: BLE001  # The other kernels are checked all the same.
            yield Result(name, dtype, False, f"{type(raised).__name__}: {raised}"[:300])
        else:
            most = TOLERANCE[setting.dtype] if tolerance is None else tolerance
            yield Result(name, dtype, error <= most, round(error, 8))


def _difference(actual: Tensor, expected: Tensor) -> float:
    actual, expected = actual.cpu(), expected.cpu()
    if not expected.is_floating_point():
        return 0.0 if torch.equal(actual, expected) else float("inf")
    actual, expected = actual.double(), expected.double()
    largest = expected.abs().amax(dim=-1, keepdim=True)
    difference = (actual - expected).abs() / largest.masked_fill(largest == 0, 1)
    return float(difference.max().nan_to_num(nan=float("inf")))


def _attention_shape(setting: Setting) -> AttentionShape:
    if setting.small:
        return AttentionShape(heads=4, kv_heads=2, head_dim=16, dtype=dtype_name(setting.dtype))
    return AttentionShape(heads=32, kv_heads=8, head_dim=128, dtype=dtype_name(setting.dtype))


def _norms(setting: Setting) -> Pairs:
    pairs: Pairs = []
    for tokens, hidden in setting.sizes((7, 96), (64, 4096)):
        x, residual, weight = setting.randn(tokens, hidden), setting.randn(tokens, hidden), setting.randn(hidden)
        ours, theirs = (
            (kernels[rms_norm](x, weight, 1e-5), *kernels[add_rms_norm](x, residual, weight, 1e-5))
            for kernels in (setting.triton, setting.reference)
        )
        pairs += zip(ours, theirs, strict=True)
    return pairs


def _activation(setting: Setting) -> Pairs:
    xs = [setting.randn(tokens, 2 * size) for tokens, size in setting.sizes((5, 1100), (64, 14_336))]
    return [(setting.triton[activation](x, "silu"), setting.reference[activation](x, "silu")) for x in xs]


def _rope(setting: Setting) -> Pairs:
    return _written(setting, lambda kernels, norm, tensors: kernels[rope_and_kv_write](*tensors))


def _qk_norm_rope(setting: Setting) -> Pairs:
    return _written(setting, lambda kernels, norm, tensors: kernels[rope_and_kv_write](*tensors, norm))


def _write_float8(setting: Setting) -> Pairs:
    scales = KVScales(0.5, 2.0)
    return _written(
        setting,
        lambda kernels, norm, tensors: kernels[rope_and_kv_write](*tensors, None, scales),
        cache_dtype=torch.float8_e4m3fn,
    )


def _written(
    setting: Setting,
    write: Callable[[Kernels, QKNorm, tuple[Tensor, ...]], None],
    cache_dtype: torch.dtype | None = None,
) -> Pairs:
    """The results of an op for query, key and both caches, by both backends."""
    positions = torch.tensor([0, 1, 5, 40, 41, 99], dtype=torch.int32, device=setting.device)
    cells = torch.tensor([17, -1, 3, 0, 79, 64], dtype=torch.int32, device=setting.device)
    pairs: Pairs = []
    for heads, kv_heads, head_dim in setting.sizes((8, 2, 64), (32, 8, 128)):
        query, key, value = (setting.randn(6, number, head_dim) for number in (heads, kv_heads, kv_heads))
        norm = QKNorm(setting.randn(head_dim), setting.randn(head_dim), 1e-6)
        cos_sin = torch.randn(100, head_dim, device=setting.device)
        outcomes = []
        for kernels in (setting.triton, setting.reference):
            changed = query.clone(), key.clone()
            cache = setting.randn(5, 16, kv_heads, head_dim).mul_(0).to(cache_dtype or setting.dtype)
            caches = cache.clone(), cache.clone()
            write(kernels, norm, (*changed, value, positions, cos_sin, cells, *caches))
            outcomes.append((*changed, *caches))
        pairs += zip(*outcomes, strict=True)
    return pairs


def _mixed(setting: Setting, **options: bool | torch.dtype) -> PagedBatch:
    rows = [(1, 0), (40, 25), (1, 300), (2, 0), (1, 15)]
    if not setting.small:
        rows += [(1, 20_000), (300, 1000), (1, 4097), (129, 0)]
    return paged_batch(rows, _attention_shape(setting), setting.device, **options)  # type: ignore[arg-type]


def _attend(kernels: Kernels, batch: PagedBatch) -> Tensor:
    """The results, of latents those numbers that are defined."""
    output = kernels[paged_attention](batch.query, batch.key_cache, batch.value_cache, batch.metadata, batch.layer)
    return output[..., batch.layer.value_start :]


def _latent_batch(setting: Setting, **options: bool | torch.dtype) -> PagedBatch:
    """Latents as in DeepSeek V3; more query heads share one than fit into a tile."""
    rows = [(1, 0), (20, 25), (1, 300), (2, 0)]
    shape = AttentionShape(heads=40, kv_heads=1, head_dim=24, dtype=dtype_name(setting.dtype), value_start=8)
    if not setting.small:
        rows += [(1, 20_000), (300, 1000), (1, 4097)]
        shape = replace(shape, heads=48, head_dim=576, value_start=64)
    return paged_batch(rows, shape, setting.device, **options)  # type: ignore[arg-type]


def _latents(setting: Setting) -> Pairs:
    batch = _latent_batch(setting)
    return [(_attend(setting.triton, batch), _attend(setting.reference, batch))]


def _latents_float8(setting: Setting) -> Pairs:
    batch = _latent_batch(setting, cache_dtype=torch.float8_e4m3fn)
    return [(_attend(setting.triton, batch), _attend(setting.reference, batch))]


def _attention_wide(setting: Setting) -> Pairs:
    """Heads as in the layers without a window of Gemma 4."""
    head_dim = 40 if setting.small else 512
    shape = AttentionShape(heads=8, kv_heads=2, head_dim=head_dim, dtype=dtype_name(setting.dtype))
    batch = paged_batch([(1, 0), (40, 25), (1, 300), (2, 0)], shape, setting.device)
    return [(_attend(setting.triton, batch), _attend(setting.reference, batch))]


def _matrices_of_heads(setting: Setting, heads: int, outputs: int, inputs: int) -> PackedLinear:
    return setting.triton[pack_linear](setting.randn(heads * outputs, inputs) * inputs**-0.5)


def _head_products(setting: Setting) -> Pairs:
    """Before attention to latents and after it, for few tokens and many, beside the products in float32."""
    pairs: Pairs = []
    for heads, first, inputs, outputs in setting.sizes((3, 8, 12, 64), (16, 64, 128, 512)):
        packed = _matrices_of_heads(setting, heads, outputs, inputs)
        weights = packed.data.float().view(heads, outputs, inputs)
        for tokens in (3, 70):
            x = setting.randn(tokens, heads, first + inputs)
            products = torch.einsum("thi,hoi->tho", x[..., first:].float(), weights)
            pairs.append((setting.triton[head_products](x, packed, False), products))
            kept = torch.cat((x[..., :first].float(), products), -1)
            pairs.append((setting.triton[head_products](x, packed, True), kept))
    return pairs


def _head_products_rows_alone(setting: Setting) -> Pairs:
    x, packed = setting.randn(70, 3, 96), _matrices_of_heads(setting, 3, 64, 96)
    compute = batch_invariant(setting.triton)[head_products]
    together = compute(x, packed, False)
    return [(compute(x[some], packed, False), together[some]) for some in (slice(0, 1), slice(17, 18), slice(30, 70))]


def _streams(setting: Setting) -> Pairs:
    count, pairs = 4, []
    for tokens, hidden in setting.sizes((5, 100), (64, 2048)):
        x, one, scale = setting.randn(tokens, count * hidden), setting.randn(tokens, hidden), setting.randn(hidden)
        factors = setting.randn(tokens, count * count)
        outcomes = [
            (
                kernels[predict_streams](x, factors),
                *kernels[correct_streams](x, one, factors[:, :count].contiguous(), 1, scale),
                kernels[add_to_streams](x.clone(), one),
                kernels[join_streams](one, x),
                kernels[match_magnitudes](x.clone(), one),
                kernels[gaussian_top_k](x.clone(), 0.5),
            )
            for kernels in (setting.triton, setting.reference)
        ]
        pairs += zip(*outcomes, strict=True)
    return pairs


def _attention(setting: Setting) -> Pairs:
    batch = _mixed(setting)
    return [(_attend(setting.triton, batch), _attend(setting.reference, batch))]


def _attention_float8(setting: Setting) -> Pairs:
    batch = _mixed(setting, cache_dtype=torch.float8_e4m3fn)
    return [(_attend(setting.triton, batch), _attend(setting.reference, batch))]


def _attention_invariant(setting: Setting) -> Pairs:
    batch = _mixed(setting, batch_invariant=True)
    return [(_attend(setting.triton, batch), _attend(setting.reference, batch))]


def _attention_rows_alone(setting: Setting) -> Pairs:
    """Each row alone; and each token of a longer row alone, as at decode."""
    return _rows_alone(setting, _mixed(setting, batch_invariant=True))


def _latents_rows_alone(setting: Setting) -> Pairs:
    return _rows_alone(setting, _latent_batch(setting, batch_invariant=True))


def _rows_alone(setting: Setting, batch: PagedBatch) -> Pairs:
    together, pairs = _attend(setting.triton, batch), []
    starts, lengths = batch.metadata.query_starts.tolist(), batch.metadata.sequence_lengths.tolist()
    for row, length in enumerate(lengths):
        for first in sorted({starts[row], starts[row + 1] - 1}):
            tokens = slice(first, starts[row + 1])
            pairs.append((_attend(setting.triton, _one_row(batch, row, tokens, length)), together[tokens]))
    return pairs


def _one_row(batch: PagedBatch, row: int, tokens: slice, length: int) -> PagedBatch:
    number = tokens.stop - tokens.start
    metadata = replace(
        batch.metadata,
        slots=batch.metadata.slots[row : row + 1],
        query_starts=torch.tensor([0, number], dtype=torch.int32, device=batch.query.device),
        sequence_lengths=batch.metadata.sequence_lengths[row : row + 1],
        max_query_length=number,
        max_sequence_length=length,
        num_tokens=number,
    )
    return replace(batch, query=batch.query[tokens], metadata=metadata)


def _padded(setting: Setting) -> tuple[PagedBatch, Tensor]:
    """A decode batch with two padding rows, as in a CUDA graph; and the expected results of the others."""
    contexts = [299, 4, 130] if setting.small else [299, 4, 9000]
    batch = paged_batch([(1, context) for context in contexts], _attention_shape(setting), setting.device)
    expected = _attend(setting.reference, batch)
    nothing = torch.zeros(2, dtype=torch.int32, device=setting.device)
    metadata = replace(
        batch.metadata,
        slots=torch.cat((batch.metadata.slots, nothing)),
        sequence_lengths=torch.cat((batch.metadata.sequence_lengths, nothing)),
        query_starts=torch.arange(6, dtype=torch.int32, device=setting.device),
        max_sequence_length=1 << 17,
        num_tokens=5,
    )
    return replace(batch, query=torch.cat((batch.query, batch.query[:2])), metadata=metadata), expected


def _attention_padded(setting: Setting) -> Pairs:
    batch, expected = _padded(setting)
    output = _attend(setting.triton, batch)
    return [(output[:3], expected), (output[3:], torch.zeros_like(output[3:]))]


def _attention_in_graph(setting: Setting) -> Pairs:
    """Attention captured without rows, replayed with three."""
    batch, expected = _padded(setting)
    lengths = batch.metadata.sequence_lengths.clone()
    batch.metadata.sequence_lengths.zero_()
    _attend(setting.triton, batch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = _attend(setting.triton, batch)
    batch.metadata.sequence_lengths.copy_(lengths)
    graph.replay()
    return [(output[:3], expected)]


def _no_synchronisation(setting: Setting) -> Pairs:
    """Ops run while torch raises if one of its ops makes the host wait."""
    batch = _mixed(setting)
    _attend(setting.triton, batch)
    layer = _layer_of_experts(setting, (9, 5, 2, 96, 64))
    setting.triton[experts](*layer)
    logits, edits = setting.randn(4, 1000), _edits(4, 1000, setting.device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        output = _attend(setting.triton, batch)
        setting.triton[experts](*layer)
        _edit_logits_of(setting.triton[edit_logits], logits, edits)
        setting.triton[logprobs](logits, edits.starts[:-1] * 0, edits.starts[:-1] * 0, 5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return [(output, _attend(setting.reference, batch))]


def _linear_invariant(setting: Setting) -> Pairs:
    """The product beside that in float32, as cuBLAS does not define the rounding of narrow types."""
    pairs: Pairs = []
    for tokens, in_features, out_features in setting.sizes((131, 96, 70), (131, 4096, 1024)):
        x, weight = setting.randn(tokens, in_features), setting.randn(out_features, in_features)
        product = batch_invariant(setting.triton)[packed_linear](x, setting.triton[pack_linear](weight))
        pairs.append((product, torch.nn.functional.linear(x.float(), weight.float())))
    return pairs


def _linear_rows_alone(setting: Setting) -> Pairs:
    x, packed = setting.randn(131, 96), setting.triton[pack_linear](setting.randn(70, 96))
    linear = batch_invariant(setting.triton)[packed_linear]
    together = linear(x, packed)
    rows = (slice(0, 1), slice(17, 18), slice(64, 131))
    return [(linear(x[some].contiguous(), packed), together[some]) for some in rows]


def _quantised_linears(setting: Setting, kernels: Kernels, out_features: int, in_features: int) -> list[Linear]:
    """One for each layout of weights; the same weights for all kernels."""
    shape, groups = (out_features, in_features), (out_features, in_features // 32)
    generator = torch.Generator().manual_seed(0)
    bytes_ = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(setting.device)
    scales = (torch.rand(groups, generator=generator) * 0.01 + 0.01).to(setting.device)
    nibbles, integers = bytes_[:, : in_features // 2].contiguous(), bytes_.view(torch.int8)
    fp8 = (bytes_ & 0x7E).view(torch.float8_e4m3fn)  # without its NaN
    return [
        lambda x: kernels[linear_w4a16](x, nibbles, scales.half(), (-8 * scales).half()),
        lambda x: kernels[linear_w8a16](x, integers, scales.half()),
        lambda x: kernels[linear_w8a8](x, integers, scales[:, 0].contiguous()),
        lambda x: kernels[linear_fp8](x, fp8, scales[:, :1].contiguous()),
        lambda x: kernels[linear_fp8](x, fp8, scales[:, ::2].contiguous(), None, (1, 64)),
    ]


def _linear_quantised(setting: Setting) -> Pairs:
    """Quantised linears for few rows and many, which use different tiles."""
    pairs: Pairs = []
    for out_features, in_features in setting.sizes((40, 96), (1024, 4096)):
        ours, theirs = (
            _quantised_linears(setting, kernels, out_features, in_features)
            for kernels in (setting.triton, setting.reference)
        )
        for tokens in (3, 40):
            x = setting.randn(tokens, in_features)
            pairs += [(our(x), their(x)) for our, their in zip(ours, theirs, strict=True)]
    return pairs


def _linear_quantised_rows_alone(setting: Setting) -> Pairs:
    x, some = setting.randn(40, 96), slice(20, 40)
    linears = _quantised_linears(setting, setting.triton, 40, 96)
    return [(linear(x[some].contiguous()), linear(x)[some]) for linear in linears]


Layer = tuple[Tensor, Tensor, Router, str, ExpertMatrices]


def _layer_of_experts(setting: Setting, size: Size) -> Layer:
    tokens, num_experts, active, hidden, features = size

    def matrix(outputs: int, inputs: int) -> Tensor:
        return setting.randn(num_experts * outputs, inputs) * inputs**-0.5

    weights = matrix(features, hidden), matrix(features, hidden), matrix(hidden, features)
    matrices = ExpertMatrices(*map(setting.triton[pack_linear], weights))
    router = Router(num_experts, active, True, 0, num_experts)
    return setting.randn(tokens, hidden), setting.randn(tokens, num_experts), router, "silu", matrices


def _experts(setting: Setting) -> Pairs:
    """Experts with few tokens and many; the larger ones are those of Qwen3-30B-A3B."""
    sizes = setting.sizes((9, 5, 2, 96, 64), (16, 128, 8, 2048, 768))
    sizes += setting.sizes((50, 3, 2, 64, 32), (1024, 128, 8, 2048, 768))
    layers = [_layer_of_experts(setting, size) for size in sizes]
    return [(setting.triton[experts](*layer), setting.reference[experts](*layer)) for layer in layers]


def _experts_rows_alone(setting: Setting) -> Pairs:
    x, logits, *layer = _layer_of_experts(setting, (70, 3, 2, 64, 32))
    compute = batch_invariant(setting.triton)[experts]
    together = compute(x, logits, *layer)
    rows = (slice(0, 1), slice(17, 18), slice(30, 70))
    return [(compute(x[some].contiguous(), logits[some].contiguous(), *layer), together[some]) for some in rows]


def _experts_in_graph(setting: Setting) -> Pairs:
    """Experts captured with one routing, replayed with another."""
    layer = _layer_of_experts(setting, (64, 128, 8, 2048, 768))
    setting.triton[experts](*layer)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = setting.triton[experts](*layer)
    layer[1].copy_(layer[1].flip(1))
    graph.replay()
    return [(output, setting.triton[experts](*layer))]


def _copy_blocks(setting: Setting) -> Pairs:
    copies = torch.tensor([[0, 1], [1, 2], [4, 0]], dtype=torch.int32, device=setting.device)
    cache = setting.randn(2, 5, 16, 2, 64)
    outcomes = []
    for kernels in (setting.triton, setting.reference):
        changed = cache.clone()
        kernels[copy_blocks](changed[0], changed[1], copies)
        outcomes.append(changed)
    return [(outcomes[0], outcomes[1])]


def _stage_blocks(setting: Setting) -> Pairs:
    cache, staged = setting.randn(3, 2, 5, 16, 2, 64), setting.randn(2, 3, 2, 16, 2, 64)
    blocks = torch.tensor([4, 9, 9, 1], dtype=torch.int32, device=setting.device)[::3]
    outcomes = []
    for kernels in (setting.triton, setting.reference):
        gathered, changed = torch.zeros_like(staged), cache.clone()
        kernels[gather_blocks](cache, gathered, blocks)
        kernels[scatter_blocks](changed, staged, blocks)
        outcomes.append((gathered, changed))
    return list(zip(*outcomes, strict=True))


def _sampling(setting: Setting) -> Pairs:
    """The distance of each uniform from its token's interval: 0 if rounding errors can explain the token."""
    from pyllm_kernels.gpu.sampling import sample

    vocabulary, rows = (500, 4) if setting.small else (131_072, 64)
    logits = setting.randn(rows, vocabulary) * 3
    device = setting.device
    top_k = torch.tensor([0, 50, 0, 400], dtype=torch.int32, device=device).repeat(rows // 4)
    top_p = torch.tensor([1.0, 1.0, 0.9, 0.8], device=device).repeat(rows // 4)
    uniforms = torch.rand(rows, device=device)
    ones = torch.ones(rows, device=device)
    every_row = torch.arange(rows, dtype=torch.int32, device=device)
    tokens = sample(logits, ones, top_k, top_p, ones * 0, uniforms, every_row).long()

    weights, order = logits.double().softmax(-1).sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(vocabulary, device=device)
    weights = weights.masked_fill((top_k > 0).unsqueeze(-1) & (ranks >= top_k.unsqueeze(-1)), 0)
    before = weights.cumsum(-1) - weights
    weights = weights.masked_fill(before >= top_p.unsqueeze(-1).double() * weights.sum(-1, keepdim=True), 0)
    by_id = torch.zeros_like(weights).scatter_(1, order, weights)
    ends = by_id.cumsum(-1) / by_id.sum(-1, keepdim=True)
    end = ends.gather(1, tokens.unsqueeze(-1)).squeeze(-1)
    begin = end - (by_id / by_id.sum(-1, keepdim=True)).gather(1, tokens.unsqueeze(-1)).squeeze(-1)
    wrong = (uniforms < begin - 1e-4) | (uniforms > end + 1e-4)
    return [(wrong.float(), torch.zeros_like(uniforms))]


def _edit_logits(setting: Setting) -> Pairs:
    """The edits on the device, and by the reference."""
    rows, vocabulary = (4, 500) if setting.small else (128, 131_072)
    logits, edits = setting.randn(rows, vocabulary) * 3, _edits(rows, vocabulary, setting.device)
    found, expected = (
        _edit_logits_of(kernels[edit_logits], logits, edits) for kernels in (setting.triton, setting.reference)
    )
    # The difference of two minus infinities is NaN.
    return [(found.clamp(min=-1e9), expected.clamp(min=-1e9))]


def _edit_logits_of(version: Callable[..., Tensor], logits: Tensor, edits: LogitsEdits) -> Tensor:
    rows, vocabulary = logits.shape
    every_row = torch.arange(rows, dtype=torch.int32, device=logits.device)
    words = torch.arange(rows * -(-vocabulary // 32), dtype=torch.int32, device=logits.device)
    return version(logits, every_row.flip(0), edits, every_row - 1, (words * 0x9E3779B1).view(rows, -1))


def _edits(rows: int, vocabulary: int, device: torch.device) -> LogitsEdits:
    """Edits of every 50th token of each row."""
    ids = torch.arange(0, vocabulary, 50, dtype=torch.int32, device=device)
    numbers = torch.rand(3, rows * len(ids), device=device)
    starts = torch.arange(rows + 1, dtype=torch.int32, device=device) * len(ids)
    return LogitsEdits(starts, ids.repeat(rows), numbers[0] - 0.5, numbers[1] + 0.5, numbers[2])


def _logprobs(setting: Setting) -> Pairs:
    """Log-probabilities beside the host's, and each row alone, bit for bit: any difference exceeds the tolerance."""
    rows, vocabulary = (4, 500) if setting.small else (128, 131_072)
    logits = setting.randn(rows, vocabulary) * 3
    chosen = torch.arange(0, rows * 3, 3, dtype=torch.int32, device=setting.device)
    every_row = torch.arange(rows, dtype=torch.int32, device=setting.device)
    tell = setting.triton[logprobs]
    together = tell(logits, every_row, chosen, 5)
    pairs = list(zip(together, setting.reference[logprobs](logits, every_row, chosen, 5), strict=True))
    for row in (0, rows - 1):
        alone = tell(logits[row : row + 1], every_row[:1], chosen[row : row + 1], 5)
        pairs += [((a[0] != b[row]).float(), torch.zeros_like(b[row])) for a, b in zip(alone, together, strict=True)]
    return pairs
