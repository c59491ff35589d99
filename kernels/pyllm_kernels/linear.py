"""`x @ weight.T` on a CPU, of weights packed once: Rust's kernels by pointer. It does not know what a layer computes.

float32 and bfloat16 are ours, and a row's result does not depend on the rows beside it. float16, which no model needs
on a CPU, stays torch's, for which this does not hold.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pyllm_kernels import _cpu

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A matrix in the form that its backend multiplies with: `data` is all of its memory, in the weight's dtype.

    `layout` says how Rust packed it; where it is None, `data` is the weight itself.
    """

    data: Tensor
    layout: _cpu.Linear | None


def pack_linear(weight: Tensor) -> PackedLinear:
    if weight.dtype not in _DTYPES:
        return PackedLinear(weight, None)
    out_features, in_features = weight.shape
    weight = weight.contiguous()
    _check_on_cpu("weight", weight)
    layout = _cpu.Linear(_DTYPES[weight.dtype], in_features, out_features)
    data = torch.empty(layout.packed_bytes // weight.dtype.itemsize, dtype=weight.dtype)
    layout.pack(weight.data_ptr(), data.data_ptr())
    return PackedLinear(data, layout)


def packed_linear(x: Tensor, packed: PackedLinear) -> Tensor:
    if packed.layout is None:
        return F.linear(x, packed.data)
    tokens, in_features = x.shape
    if in_features != packed.layout.in_features or x.dtype is not packed.data.dtype:
        raise ValueError(
            f"x is {x.dtype} [{tokens}, {in_features}], but the packed weight is {packed.data.dtype} "
            f"[{packed.layout.out_features}, {packed.layout.in_features}]"
        )
    _check_on_cpu("x", x)
    out = torch.empty((tokens, packed.layout.out_features), dtype=x.dtype)
    packed.layout.run(x.data_ptr(), tokens, packed.data.data_ptr(), out.data_ptr())
    return out


def packed_rows(packed: PackedLinear, rows: Tensor) -> Tensor:
    if packed.layout is None:
        return F.embedding(rows, packed.data)
    (num_rows,) = rows.shape
    if rows.dtype is not torch.int32:
        raise ValueError(f"rows are {rows.dtype}: give int32")
    _check_on_cpu("rows", rows)
    out = torch.empty((num_rows, packed.layout.in_features), dtype=packed.data.dtype)
    packed.layout.unpack_rows(packed.data.data_ptr(), rows.data_ptr(), num_rows, out.data_ptr())
    return out


def _check_on_cpu(name: str, tensor: Tensor) -> None:
    """What a pointer cannot say."""
    if not tensor.is_cpu or not tensor.is_contiguous():
        raise ValueError(f"{name} is on {tensor.device} with strides {tensor.stride()}: give a contiguous CPU tensor")
