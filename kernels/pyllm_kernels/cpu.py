"""The ops on a CPU, in Rust: each function checks shapes and dtypes, allocates the output and passes addresses.

They take float32 and bfloat16. float16, which no model needs on a CPU, is left to the reference. Does not compute.
"""

import torch
from torch import Tensor

from pyllm_kernels import _cpu, graph, reference
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
