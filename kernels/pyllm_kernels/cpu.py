"""The ops on a CPU, in Rust: each function checks shapes and dtypes, allocates the output and passes addresses.

They take float32 and bfloat16. float16, which no model needs on a CPU, is left to the reference. Does not compute.
"""

import torch
from torch import Tensor

from pyllm_kernels import _cpu, graph, reference
from pyllm_kernels.edits import LogitsEdits
from pyllm_kernels.experts import ClampedSwiglu, ExpertMatrices, Router

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_Rows = tuple[str, int, int]
_Parameters = tuple[int, int, int, int, int]


def experts(x: Tensor, logits: Tensor, router: Router, kind: str | ClampedSwiglu, matrices: ExpertMatrices) -> Tensor:
    packed = (matrices.gate, matrices.up, matrices.down)
    layouts = [matrix.layout for matrix in packed]
    if not _are_ours(x, logits) or any(layout is None for layout in layouts):
        return graph.not_captured(reference.experts)(x, logits, router, kind, matrices)
    tokens, hidden = x.shape
    _check_shape("logits", logits, (tokens, router.num_experts))
    _check_dtype("logits", logits, x.dtype)
    out = graph.empty((tokens, hidden), x)
    biases = (matrices.gate_bias, matrices.up_bias, matrices.down_bias)
    parts = [
        (layout, matrix.data.data_ptr(), None if bias is None else _bias(bias, router, layout))
        for layout, matrix, bias in zip(layouts, packed, biases, strict=True)
        if layout is not None
    ]
    rule = (router.num_experts, router.active, router.normalised)
    own = (router.first, router.count)
    _cpu.experts(tokens, _rows("x", x), _rows("logits", logits), rule, own, kind, parts, _rows("out", out))
    graph.keep(x, logits, *(matrix.data for matrix in packed), *(bias for bias in biases if bias is not None))
    return out


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    uniforms: Tensor,
    rows: Tensor | None = None,
) -> Tensor:
    """Choose tokens from logits [rows, vocabulary], float32 or bfloat16 -> int32 [samples].

    Temperature, top-p, min-p and uniforms are float32 [samples], top-k is int32 [samples]; a temperature of 0 takes the
    first of the greatest logits. The token is -1 if no logit is above minus infinity. `rows` int32 [samples] is each
    sample's row of logits; None: sample i has row i.
    """
    (samples,) = uniforms.shape
    for name, tensor, dtype in (
        ("temperature", temperature, torch.float32),
        ("top_k", top_k, torch.int32),
        ("top_p", top_p, torch.float32),
        ("min_p", min_p, torch.float32),
        ("uniforms", uniforms, torch.float32),
    ):
        _check_shape(name, tensor, (samples,))
        _check_dtype(name, tensor, dtype)
        _check_contiguous(name, tensor)
    out = _sample(
        logits,
        samples,
        rows,
        (temperature.data_ptr(), top_k.data_ptr(), top_p.data_ptr(), min_p.data_ptr(), uniforms.data_ptr()),
    )
    graph.keep(temperature, top_k, top_p, min_p, uniforms)
    return out


def sample_greedily(logits: Tensor, rows: Tensor | None = None) -> Tensor:
    """The first of the greatest logits of each sample, as `sample` at temperature 0; reads the logits once."""
    return _sample(logits, len(logits) if rows is None else len(rows), rows, None)


def _sample(logits: Tensor, samples: int, rows: Tensor | None, parameters: _Parameters | None) -> Tensor:
    num_rows, vocabulary = logits.shape
    if logits.dtype not in _DTYPES:
        raise ValueError(f"logits are {logits.dtype}: give float32 or bfloat16")
    if rows is not None:
        _check_indices("rows", rows, (samples,))
    out = graph.empty((samples,), logits, "int32")
    _cpu.sample(
        samples,
        (num_rows, vocabulary),
        _rows("logits", logits),
        None if rows is None else rows.data_ptr(),
        parameters,
        out.data_ptr(),
    )
    graph.keep(logits, *(() if rows is None else (rows,)))
    return out


def edit_logits(
    logits: Tensor,
    rows: Tensor,
    edits: LogitsEdits,
    mask_rows: Tensor | None = None,
    masks: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    if logits.dtype not in _DTYPES:
        return graph.not_captured(reference.edit_logits)(logits, rows, edits, mask_rows, masks, out)
    num_rows, vocabulary = logits.shape
    (samples,) = rows.shape
    (num_edits,) = edits.ids.shape
    _check_indices("rows", rows, (samples,))
    _check_indices("starts", edits.starts, (samples + 1,))
    _check_indices("ids", edits.ids, (num_edits,))
    numbers = edits.bias, edits.repetition, edits.subtracted
    for name, tensor in zip(("bias", "repetition", "subtracted"), numbers, strict=True):
        _check_shape(name, tensor, (num_edits,))
        _check_dtype(name, tensor, torch.float32)
        _check_contiguous(name, tensor)
    bias, repetition, subtracted = numbers
    if out is None:
        out = graph.empty((samples, vocabulary), logits, "float32")
    _check_shape("out", out, (samples, vocabulary))
    _check_dtype("out", out, torch.float32)
    _check_contiguous("out", out)
    _cpu.edit_logits(
        samples,
        (num_rows, vocabulary),
        _rows("logits", logits),
        rows.data_ptr(),
        (
            edits.starts.data_ptr(),
            edits.ids.data_ptr(),
            bias.data_ptr(),
            repetition.data_ptr(),
            subtracted.data_ptr(),
            num_edits,
        ),
        None if mask_rows is None or masks is None else _masks(samples, mask_rows, masks),
        out.data_ptr(),
    )
    graph.keep(logits, rows, edits.starts, edits.ids, *numbers, out)
    graph.keep(*(tensor for tensor in (mask_rows, masks) if tensor is not None))
    return out


def logprobs(logits: Tensor, rows: Tensor, chosen: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    if logits.dtype not in _DTYPES:
        return graph.not_captured(reference.logprobs)(logits, rows, chosen, num_top)
    (samples,) = rows.shape
    _check_indices("rows", rows, (samples,))
    _check_indices("chosen", chosen, (samples,))
    ids = graph.empty((samples, 1 + num_top), logits, "int32")
    values = graph.empty((samples, 1 + num_top), logits, "float32")
    ranks = graph.empty((samples,), logits, "int32")
    _cpu.logprobs(
        samples,
        (logits.shape[0], logits.shape[1]),
        _rows("logits", logits),
        rows.data_ptr(),
        chosen.data_ptr(),
        num_top,
        (ids.data_ptr(), values.data_ptr(), ranks.data_ptr()),
    )
    graph.keep(logits, rows, chosen)
    return ids, values, ranks


def _masks(samples: int, mask_rows: Tensor, masks: Tensor) -> tuple[int, int, tuple[int, int]]:
    _check_indices("mask_rows", mask_rows, (samples,))
    _check_contiguous("masks", masks)
    if masks.ndim != 2 or masks.dtype not in (torch.int32, torch.uint32):
        raise ValueError(f"masks are {masks.dtype} of {masks.ndim} dimensions: give rows of int32 or uint32")
    return mask_rows.data_ptr(), masks.data_ptr(), (masks.shape[0], masks.shape[1])


def _are_ours(*tensors: Tensor) -> bool:
    return all(tensor.dtype in _DTYPES for tensor in tensors)


def _rows(name: str, tensor: Tensor) -> _Rows:
    """The dtype, address and row stride of a matrix whose rows are contiguous."""
    if not tensor.is_cpu or (tensor.stride(1) != 1 and tensor.shape[1] > 1):
        raise ValueError(f"{name} is on {tensor.device} with strides {tensor.stride()}: give contiguous rows on a CPU")
    return _DTYPES[tensor.dtype], tensor.data_ptr(), tensor.stride(0)


def _bias(bias: Tensor, router: Router, layout: _cpu.Linear) -> _Rows:
    _check_shape("a bias of experts", bias, (router.count, layout.out_features // router.count))
    return _rows("a bias of experts", bias)


def _check_indices(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    _check_shape(name, tensor, shape)
    _check_dtype(name, tensor, torch.int32)
    _check_contiguous(name, tensor)


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name} is of shape {list(tensor.shape)}: it must be of {list(shape)}")


def _check_dtype(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype is not dtype:
        raise ValueError(f"{name} is {tensor.dtype}: give {dtype}")


def _check_contiguous(name: str, tensor: Tensor) -> None:
    if not tensor.is_cpu or not tensor.is_contiguous():
        raise ValueError(f"{name} is on {tensor.device} with strides {tensor.stride()}: give a contiguous CPU tensor")
