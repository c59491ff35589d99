"""`x @ weight.T` on a CPU, of weights packed once: Rust's kernels by pointer. It does not know what a layer computes.

A row's result does not depend on the rows beside it. float16 weights, which no model needs on a CPU, stay torch's, for
which this does not hold.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pyllm_kernels import _cpu, graph

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
GROUP = 32
"""Features of a group of GGUF's formats: a matrix may be cut where one ends."""
BLOCK_BYTES = {"q8_0": 34, "q4_0": 18, "q4_1": 20}
"""How long a group is in GGUF's formats that can be packed as they are."""
INT8_BLOCKS = ("q4_0", "q4_1")
"""GGUF's formats that int8 weights can be made of, and be kept in."""


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A matrix in the form that its backend multiplies with.

    `format` is the weight's dtype, "int8" or one of `BLOCK_BYTES`; `dtype` that of inputs and outputs. `data` is all of
    its memory, as `layout` says: of floats in their dtype, of integers in bytes. Where `layout` is None, it is what was
    packed, the floats or the blocks; of "int8" the floats that it stands for.
    """

    data: Tensor
    format: str
    dtype: torch.dtype
    layout: _cpu.Linear | None

    def __post_init__(self) -> None:
        layout, data = self.layout, self.data
        if layout is not None and (data.nbytes != layout.packed_bytes or not data.is_cpu or not data.is_contiguous()):
            raise ValueError(
                f"data is {data.nbytes} bytes on {data.device} with strides {data.stride()}: the layout takes "
                f"{layout.packed_bytes} in one piece on the CPU"
            )

    @property
    def out_features(self) -> int:
        return len(self.data) if self.layout is None else self.layout.out_features


def pack_linear(weight: Tensor) -> PackedLinear:
    _check_matrix("weight", weight)
    if weight.dtype not in _DTYPES:
        return PackedLinear(weight, _name(weight.dtype), weight.dtype, None)
    dtype = weight.dtype
    return _pack(weight, _cpu.Linear(_DTYPES[dtype], _name(dtype), *_features(weight)), _DTYPES[dtype], dtype)


def pack_int8(weight: Tensor) -> PackedLinear:
    _check_matrix("weight", weight)
    dtype = weight.dtype
    return _pack(weight, _cpu.Linear("int8", _name(dtype), *_features(weight)), "int8", dtype)


def pack_int8_blocks(blocks: Tensor, block_format: str, dtype: torch.dtype) -> PackedLinear:
    in_features = in_features_of_blocks(blocks, block_format)
    return _pack(blocks, _cpu.Linear("int8", _name(dtype), in_features, len(blocks), block_format), "int8", dtype)


def pack_blocks(blocks: Tensor, block_format: str, dtype: torch.dtype) -> PackedLinear:
    in_features = in_features_of_blocks(blocks, block_format)
    return _pack(blocks, _cpu.Linear(block_format, _name(dtype), in_features, len(blocks)), block_format, dtype)


def packed_linear(x: Tensor, packed: PackedLinear, out: Tensor | None = None) -> Tensor:
    if packed.layout is None:
        product = graph.not_captured(F.linear)(x, packed.data)
        return product if out is None else out.copy_(product)
    _check_matrix("x", x)
    tokens, in_features = x.shape
    out_features = packed.layout.out_features
    if in_features != packed.layout.in_features or x.dtype is not packed.dtype:
        raise ValueError(
            f"x is {x.dtype} [{tokens}, {in_features}], but the packed weight takes {packed.dtype} "
            f"[tokens, {packed.layout.in_features}]"
        )
    _check_on_cpu("x", x)
    if out is None:
        out = graph.empty((tokens, out_features), x.dtype)
    elif out.shape != (tokens, out_features) or out.dtype is not x.dtype or not out.is_cpu or _stride(out) is None:
        raise ValueError(
            f"out is {out.dtype} {list(out.shape)} on {out.device} with strides {out.stride()}: give {x.dtype} "
            f"[{tokens}, {out_features}] on the CPU, with rows contiguous and apart"
        )
    stride = _stride(out) or out_features
    packed.layout.run(x.data_ptr(), tokens, packed.data.data_ptr(), out.data_ptr(), stride)
    graph.keep(x, packed.data, out)
    return out


def packed_rows(packed: PackedLinear, rows: Tensor) -> Tensor:
    if packed.layout is None:
        return graph.not_captured(F.embedding)(rows, packed.data)
    if rows.ndim != 1:
        raise ValueError(f"rows are {list(rows.shape)}: give a vector")
    num_rows = len(rows)
    if rows.dtype is not torch.int32:
        raise ValueError(f"rows are {rows.dtype}: give int32")
    _check_on_cpu("rows", rows)
    out = graph.empty((num_rows, packed.layout.in_features), packed.dtype)
    packed.layout.unpack_rows(packed.data.data_ptr(), rows.data_ptr(), num_rows, out.data_ptr())
    graph.keep(packed.data, rows)
    return out


def in_features_of_blocks(blocks: Tensor, block_format: str) -> int:
    """How many features so many blocks are; raises `ValueError` where they are none of this format."""
    _check_matrix("blocks", blocks)
    block_bytes = BLOCK_BYTES.get(block_format)
    if block_bytes is None:
        raise ValueError(f"no blocks of {block_format}: use {', '.join(BLOCK_BYTES)}, or floats")
    num_blocks, rest = divmod(blocks.shape[1], block_bytes)
    if blocks.dtype is not torch.uint8 or rest:
        raise ValueError(
            f"blocks are {blocks.dtype} {list(blocks.shape)}: {block_format} has uint8, {block_bytes} of them a block"
        )
    return num_blocks * GROUP


def _features(weight: Tensor) -> tuple[int, int]:
    """Those that go in, and those that come out."""
    return weight.shape[1], weight.shape[0]


def _pack(weight: Tensor, layout: _cpu.Linear, weight_format: str, dtype: torch.dtype) -> PackedLinear:
    weight = weight.contiguous()
    _check_on_cpu("weight", weight)
    data = torch.empty(layout.packed_bytes, dtype=torch.uint8)
    if weight_format == _name(dtype):
        data = data.view(dtype)
    layout.pack(weight.data_ptr(), data.data_ptr())
    return PackedLinear(data, weight_format, dtype, layout)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _stride(out: Tensor) -> int | None:
    """Elements from one row to the next; None where rows are not contiguous, or not apart."""
    if out.is_contiguous():
        return out.shape[1]
    apart, within = out.stride()
    return apart if within == 1 and apart >= out.shape[1] else None


def _check_matrix(name: str, tensor: Tensor) -> None:
    if tensor.ndim != 2:
        raise ValueError(f"{name} is {list(tensor.shape)}: give a matrix")


def _check_on_cpu(name: str, tensor: Tensor) -> None:
    """What a pointer cannot say."""
    if not tensor.is_cpu or not tensor.is_contiguous():
        raise ValueError(f"{name} is on {tensor.device} with strides {tensor.stride()}: give a contiguous CPU tensor")
