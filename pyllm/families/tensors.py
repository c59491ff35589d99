"""Tensors of files, and the entries that fill parameters from them, with their transforms. Knows no model."""

from typing import Literal

import msgspec

from pyllm.families.spec import Shape


class FileTensor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tensor in a file. `shape` is in torch's order."""

    name: str
    type: str  # F32, F16, BF16, Q4_0, Q4_1, Q8_0 ...
    shape: Shape
    file: int  # index into `Checkpoint.files`
    offset: int  # bytes from the start of the file
    num_bytes: int


class Rows(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Rows `start:stop:step` of a tensor that several parameters share."""

    start: int
    stop: int
    step: int = 1


class Deinterleave(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Reorders the first `rotary_size` rows of each head: rows 0, 2, 4 ... first, then 1, 3, 5 ...

    A file may have the pairs of RoPE side by side; the kernels pair the two halves of a head.
    """

    head_size: int
    rotary_size: int


class GroupRows(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Rows `start:stop` of every `group` rows: the part of each head in a tensor that has query, key and value."""

    group: int
    start: int
    stop: int


class LastFirst(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Moves the last `count` rows of every `group` rows before the others."""

    group: int
    count: int


class Transpose(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Swaps rows and columns. Only for floats: quantised blocks lie along rows."""


class Add(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Adds a number to each element."""

    value: float


class LogOfMagnitude(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The logarithm of the element without its sign.

    llama.cpp's files have `-exp` of the decays of a state, or `exp`.
    """


class Scale(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Multiplies each element by a number."""

    value: float


Transform = Rows | Deinterleave | GroupRows | LastFirst | Transpose | Add | LogOfMagnitude | Scale


class Quantised(msgspec.Struct, frozen=True, array_like=True):
    """The quantisation of a matrix of integers or small floats: a weight is `scale * (element - zero point)`.

    `layout` is the layout of the elements in their tensor. "bytes" is [out_features, in_features], one byte an element.
    "packed", "gptq" and "awq" pack integers into int32, the first in the lowest bits: "packed" along rows, "gptq" along
    columns, both in order, and "awq" along columns in the order 0, 2, 4, 6, 1, 3, 5, 7. "gptq" and "awq" have a column
    an output, and scales [groups, out_features]. "ternary" has one scale, and for -1, 0 and 1 the integers from 0 up
    in 2 bits: a byte has those of four rows, each a quarter of the rows apart. "mxfp4" has floats of 4 bits (E2M1), two
    a byte, the first in the low half, and scales that are exponents (E8M0).
    """

    layout: Literal["bytes", "packed", "gptq", "awq", "ternary", "mxfp4"]
    bits: int  # of the integers that the kernels multiply
    block: tuple[int, int]  # rows and columns that share a scale
    scales: FileTensor
    zeros: FileTensor | None = None  # None: the middle of the integers, or 0 in "bytes"
    zero_offset: int = 0  # is added to each stored zero point
    groups: FileTensor | None = None  # int32 [in_features]; None: consecutive groups
    inverse_scales: bool = False  # weights are divided by what the file has


class TensorEntry(msgspec.Struct, frozen=True, array_like=True):
    """One parameter of the model: its name and shape, the tensor that fills it, and the transforms in their order.

    The shape of a `quantised` source is the shape of the dequantised matrix.
    """

    name: str
    shape: Shape
    source: FileTensor
    transforms: tuple[Transform, ...] = ()
    quantised: Quantised | None = None

    @property
    def file_tensors(self) -> tuple[FileTensor, ...]:
        """The source and the tensors of its quantisation."""
        if self.quantised is None:
            return (self.source,)
        beside = (self.quantised.scales, self.quantised.zeros, self.quantised.groups)
        return (self.source, *(tensor for tensor in beside if tensor is not None))
