"""Reads the quantised matrices of a Hugging Face folder: as blocks for the kernels, or as numbers.

Knows the kernels' format that is nearest to a file's, but not the format that a layer is packed in.
"""

import logging
from collections.abc import Iterable
from math import gcd
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pyllm_kernels import GGUF_BLOCKS, MatrixRows, Scales
from pyllm_kernels.tensors import Array, Floats, Tensor, numpy_dtype

from pyllm.families.tensors import FileTensor, TensorEntry
from pyllm.workers.loaders.packed_integers import Codes, Words, as_slice, columns_of, unpacked
from pyllm.workers.loaders.requantise import as_q8_0
from pyllm.workers.loaders.safetensors import SafetensorsReader
from pyllm.workers.loaders.tensor_table import DTYPES, RowSlice, TensorTable, rows_of
from pyllm.workers.loaders.transforms import source_rows
from pyllm.workers.loaders.weights import WHOLE, check_finite, fill_finite

logger = logging.getLogger(__name__)

_GROUP = 32  # features of a block
# Elements that are unpacked at once: temporary arrays fit into the CPU's cache.
_CHUNK = 1 << 20


class QuantisedReader:
    """Reads through `table`, and other tensors by `plain`. Logs each format that weights are multiplied in once."""

    def __init__(self, table: TensorTable, plain: SafetensorsReader, method: str) -> None:
        self._table = table
        self._plain = plain
        self._method = method
        self._logged: set[str] = set()

    def read(self, name: str, shape: tuple[int, ...], out: Tensor, rows: slice = WHOLE, columns: slice = WHOLE) -> None:
        """See `WeightReader.read`."""
        entry, _ = self._table.find(name, shape)
        if entry.quantised is None:
            self._plain.read(name, shape, out, rows, columns)
            return
        wanted = range(shape[0])[rows]
        for part in _chunks(len(wanted), shape[1]):
            chunk = slice(wanted.start + part.start, wanted.start + part.stop)
            numbers = self.rows(name, (shape[0], shape[1]), chunk, columns).numbers()
            fill_finite(name, out[part], numbers)

    def rows(
        self,
        name: str,
        shape: tuple[int, int],
        rows: slice = WHOLE,
        columns: slice = WHOLE,
        keep_quantised: bool = False,
    ) -> MatrixRows:
        """See `WeightReader.rows`. Without `keep_quantised` rows are exact: elements with their scales, or floats."""
        entry, content = self._table.find(name, shape)
        quantised = entry.quantised
        if quantised is None:
            return self._plain.rows(name, shape, rows, columns, keep_quantised)
        start, stop, _ = columns.indices(shape[1])
        if quantised.layout == "mxfp4":
            return self._mxfp4(entry, source_rows(entry, rows), slice(start, stop))
        share = _Share(np.arange(entry.source.shape[0])[source_rows(entry, rows)], start, stop)
        if quantised.layout == "bytes" and quantised.zeros is None and quantised.groups is None:
            kind = "int8" if entry.source.type == "I8" else "float8_e4m3fn"
            scales = _of_columns(self._scales(entry, share), quantised.block[1], share)
            elements = rows_of(entry, content, kind, RowSlice(rows, start, share.width), scales)
            if not keep_quantised:
                return elements
            if kind == "float8_e4m3fn" or elements.is_int8:
                self._log("int8" if kind == "int8" else "fp8, on a CPU as floats of the activations' dtype")
                return elements
        grid = self._grid(entry, share)
        return self._blocks(name, entry, share, grid) if keep_quantised else self._exact(entry, share, grid)

    def release(self, names: Iterable[str]) -> None:
        """See `WeightReader.release`."""
        self._table.release(names)

    def _mxfp4(self, entry: TensorEntry, rows: slice | npt.NDArray[np.int64], columns: slice) -> MatrixRows:
        """Blocks in GGUF's layout: the scale, then the first half of the floats in the low halves of bytes."""
        self._log("MXFP4, on a CPU")
        quantised, num_rows = entry.quantised, entry.source.shape[0]
        assert quantised is not None
        scales = self._table.content(quantised.scales).reshape(num_rows, -1)[rows]
        content = self._table.content(entry.source).reshape(num_rows, -1, _GROUP // 2)[rows]
        blocks = np.empty((*scales.shape, GGUF_BLOCKS["mxfp4"][1]), np.uint8)
        blocks[..., 0] = scales
        for part in _chunks(len(content), entry.source.shape[1]):
            first, second = np.split(content[part], 2, axis=-1)
            blocks[part, :, 1::2] = first & 0x0F | second << 4
            blocks[part, :, 2::2] = first >> 4 | second & 0xF0
        start, stop = columns.start // _GROUP, -(-columns.stop // _GROUP)
        found = MatrixRows.of(_flat(blocks[:, start:stop]), "mxfp4")
        if columns.start % _GROUP or columns.stop % _GROUP:
            first = start * _GROUP
            return MatrixRows.of(found.numbers()[:, columns.start - first : columns.stop - first])
        return found

    def _blocks(self, name: str, entry: TensorEntry, share: "_Share", grid: "_Grid") -> MatrixRows:
        """Rows in the kernels' format that is nearest to the file's."""
        if grid.is_int8:
            self._log("int8")
            return self._exact(entry, share, grid)
        if share.width % _GROUP:
            self._log(f"floats where a rank's {share.width} columns do not fill groups of {_GROUP}")
            return self._exact(entry, share, grid)
        if grid.blocks is None or (grid.bits == 8 and not grid.is_symmetric):
            self._log("Q8_0 where groups are in act-order or not of 32, or 8 bits are asymmetric, for a small loss")
            return self._requantised(name, entry, share, grid)
        exact, zeros = grid.scales.take(grid.blocks, 1), grid.zeros.take(grid.blocks, 1)  # [rows, blocks]
        with np.errstate(over="ignore", invalid="ignore"):
            scales = exact.astype(np.float16)
            minimums = (-scales.astype(np.float32) * zeros).astype(np.float16)
            fit = _nearly(scales, exact) and np.isfinite(minimums).all()
        if not fit:
            self._log("floats where float16 cannot hold their scales")
            return self._exact(entry, share, grid)
        kind = "q8_0" if grid.bits == 8 else "q4_0" if grid.is_symmetric else "q4_1"
        self._log(kind.upper())
        factors = [scales, minimums] if kind == "q4_1" else [scales]
        blocks = np.empty((*scales.shape, GGUF_BLOCKS[kind][1]), np.uint8)
        for index, factor in enumerate(factors):
            blocks[..., 2 * index : 2 * index + 2] = factor[..., None].view(np.uint8)
        for part in _chunks(*share.shape):
            codes = self._codes(entry, share.part(part)).reshape(-1, scales.shape[1], _GROUP)
            lows, highs = np.split(codes, 2, axis=-1)
            blocks[part, :, 2 * len(factors) :] = codes ^ np.uint8(0x80) if kind == "q8_0" else lows | highs << 4
        return MatrixRows.of(_flat(blocks), kind)

    def _requantised(self, name: str, entry: TensorEntry, share: "_Share", grid: "_Grid") -> MatrixRows:
        def finite_numbers(part: slice) -> Floats:
            numbers = self._numbers(entry, share, grid, part)
            check_finite(name, numbers)
            return numbers

        return as_q8_0(map(finite_numbers, _chunks(*share.shape)))

    def _exact(self, entry: TensorEntry, share: "_Share", grid: "_Grid") -> MatrixRows:
        """Exact rows: integers of 8 bits with scales and no zero point, or floats if that is not possible."""
        if grid.is_int8:
            scales = Scales(grid.scales, share.width)
        elif grid.blocks is not None and (grid.bits == 4 or grid.is_symmetric):
            scales = Scales(grid.scales.take(grid.blocks, 1), _GROUP)
        else:
            numbers = [self._numbers(entry, share, grid, part) for part in _chunks(*share.shape)]
            return MatrixRows.of(np.concatenate(numbers))
        integers = np.empty(share.shape, np.int8)
        for part in _chunks(*share.shape):
            integers[part] = self._integers(entry, share, grid, part)
        return MatrixRows.scaled(integers, scales)

    def _numbers(self, entry: TensorEntry, share: "_Share", grid: "_Grid", rows: slice) -> Floats:
        """The dequantised numbers, float32 [rows, width]."""
        with np.errstate(invalid="ignore"):  # Infinite scales are refused by the caller.
            numbers: Floats = grid.scales[rows].take(grid.groups, 1) * self._integers(entry, share, grid, rows)
        return numbers

    def _integers(self, entry: TensorEntry, share: "_Share", grid: "_Grid", rows: slice) -> Array:
        """The integers minus their zero points, int16 [rows, width]."""
        codes = self._codes(entry, share.part(rows)).astype(np.int16)
        return codes - grid.zeros[rows].take(grid.groups, 1)

    def _codes(self, entry: TensorEntry, share: "_Share") -> Codes:
        """The stored integers, shifted to start at 0: [rows, width]."""
        quantised, content = entry.quantised, self._table.content(entry.source)
        assert quantised is not None
        (rows, columns), rest = entry.source.shape, slice(share.start, share.stop)
        order, per_word = as_slice(share.order), 32 // quantised.bits
        words_share = slice(share.start // per_word, -(-share.stop // per_word))
        within = slice(share.start % per_word, share.start % per_word + share.width)
        match quantised.layout:
            case "bytes":
                return content.reshape(rows, columns)[order, rest] ^ np.uint8(0x80)
            case "packed":
                words = _integers(content).reshape(rows, -1)[order, words_share]
                return np.ascontiguousarray(unpacked(words, quantised.bits)[:, within])
            case "gptq":
                words = _integers(content).reshape(-1, rows)[words_share, order].T
                return np.ascontiguousarray(unpacked(words, quantised.bits)[:, within])
            case "ternary":
                quarters, lines = np.divmod(share.order, rows // 4)
                stored = content.reshape(rows // 4, columns)[lines, rest]
                values: Codes = (stored >> (2 * quarters[:, None]).astype(np.uint8)) & np.uint8(3)
                return values + np.uint8(7)
            case _:  # awq
                words = _integers(content).reshape(columns, -1)[rest]
                return np.ascontiguousarray(columns_of(words, 4, share.order, is_awq=True).T)

    def _grid(self, entry: TensorEntry, share: "_Share") -> "_Grid":
        quantised = entry.quantised
        assert quantised is not None
        groups = np.arange(share.start, share.stop) // quantised.block[1]
        if quantised.groups is not None:
            stored = _integers(self._table.content(quantised.groups))[share.start : share.stop]
            groups = stored.astype(np.int64)
        scales = self._scales(entry, share)
        zeros = np.full(scales.shape, 1 << (quantised.bits - 1), np.int16)
        if quantised.zeros is not None:
            codes = self._stored_zeros(entry, quantised.zeros, share)
            zeros[...] = codes
            zeros += np.int16(quantised.zero_offset)
        return _Grid.of(quantised.bits, scales, zeros, groups)

    def _stored_zeros(self, entry: TensorEntry, zeros: FileTensor, share: "_Share") -> Codes:
        """The stored zero points [rows, groups]."""
        quantised, content = entry.quantised, self._table.content(zeros)
        assert quantised is not None
        if quantised.layout == "bytes":
            rows = share.order // quantised.block[0]
            return content.reshape(-(-entry.source.shape[0] // quantised.block[0]), -1)[rows] ^ np.uint8(0x80)
        words = _integers(content).reshape(zeros.shape)
        words = words.T if quantised.layout == "packed" else words
        return columns_of(words, quantised.bits, share.order, quantised.layout == "awq").T

    def _scales(self, entry: TensorEntry, share: "_Share") -> Floats:
        """The scales float32 [rows, groups], for all columns of the matrix."""
        quantised = entry.quantised
        assert quantised is not None
        stored = quantised.scales
        # Copied, as a tensor may start at any byte of the file.
        scales = self._table.content(stored).copy().view(numpy_dtype(DTYPES[stored.type])).astype(np.float32)
        if quantised.inverse_scales:
            with np.errstate(divide="ignore"):  # Infinite scales are refused by the caller.
                scales = np.float32(1) / scales
        if quantised.layout in {"gptq", "awq"}:
            return np.ascontiguousarray(scales.reshape(stored.shape)[:, share.order].T)
        num_groups = -(-entry.source.shape[1] // quantised.block[1])
        return scales.reshape(-1, num_groups)[share.order // quantised.block[0]]

    def _log(self, kind: str) -> None:
        if kind not in self._logged:
            self._logged.add(kind)
            logger.info("%s weights are multiplied as %s", self._method, kind)


class _Share(NamedTuple):
    """Part of a matrix: the indices of the source's rows, in order, and the range of columns."""

    order: npt.NDArray[np.int64]
    start: int
    stop: int

    @property
    def width(self) -> int:
        return self.stop - self.start

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.order), self.width

    def part(self, rows: slice) -> "_Share":
        return self._replace(order=self.order[rows])


class _Grid(NamedTuple):
    """The scales and zero points of a matrix, float32 and int16 [rows, groups]: a number is `scale * (integer - zero)`.

    `groups` is the group of each column; `blocks` the group of each 32 columns, None if any 32 have several groups.
    """

    bits: int
    scales: Floats
    zeros: Array
    groups: Array
    blocks: Array | None
    is_symmetric: bool

    @classmethod
    def of(cls, bits: int, scales: Floats, zeros: Array, groups: Array) -> "_Grid":
        blocks = None
        if not len(groups) % _GROUP:
            by_block = groups.reshape(-1, _GROUP)
            blocks = by_block[:, 0] if bool((by_block == by_block[:, :1]).all()) else None
        return cls(bits, scales, zeros, groups, blocks, bool((zeros == 1 << (bits - 1)).all()))

    @property
    def is_int8(self) -> bool:
        return self.bits == 8 and self.is_symmetric and self.scales.shape[1] == 1


def _of_columns(scales: Floats, features: int, share: _Share) -> Scales:
    """The scales of some columns, from the scales of all groups; the columns may begin and end within a group."""
    is_one = share.start // features == (share.stop - 1) // features
    unit = share.width if is_one else gcd(features, share.start)
    groups = np.arange(share.start, share.stop, unit) // features
    return Scales(scales.take(groups, 1), unit)


def _nearly(rounded: Array, scales: Floats) -> bool:
    """Whether no scale is off by more than the rounding error of its row's largest scale in float16."""
    largest = np.abs(scales).max(1, keepdims=True)
    return bool((np.abs(rounded.astype(np.float32) - scales) <= largest * np.float32(2.0**-11)).all())


def _flat(blocks: Array) -> Array:
    """[rows, blocks, bytes] as [rows, bytes]."""
    return blocks.reshape(len(blocks), -1)


def _integers(content: npt.NDArray[np.uint8]) -> Words:
    return content.view("<i4")


def _chunks(num_rows: int, width: int) -> list[slice]:
    step = max(_GROUP, _CHUNK // width // _GROUP * _GROUP)
    return [slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]
