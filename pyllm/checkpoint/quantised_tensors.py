"""Groups the tensors of each quantised matrix of a folder: its integers, scales and zero points.

Knows no parameter of a model. Reads no weights, only small tensors with shapes and group indices.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyllm.checkpoint.quantization_config import QuantizationConfig, Scheme
from pyllm.checkpoint.types import read_tensor
from pyllm.errors import ConfigError
from pyllm.families.tensors import FileTensor, Quantised

if TYPE_CHECKING:
    import numpy as np  # Imported only when needed: few models need it, and it would delay every start.
    import numpy.typing as npt

Shape = tuple[int, ...]

_FLOATS = ("F16", "BF16", "F32")
_BYTES = {"int": "I8", "float8": "F8_E4M3"}
_MATRICES = {*_BYTES.values(), "U8"}  # the types of quantised matrices that are named like floats
_INTEGERS = {"I32": "<i4", "I64": "<i8"}
_MXFP4_BYTES = 16  # of a block of 32 floats
# Scales of activations and of the KV cache, which the kernels compute themselves.
_UNUSED = (".input_scale", ".input_zero_point", ".output_scale", ".q_scale", ".k_scale", ".v_scale", ".kv_scale")


class Gathered(NamedTuple):
    """The tensors of a folder; each quantised matrix is one tensor, with the name that it would have as floats.

    `quantised` has the quantisation of each of these. `no_biases` names biases of zeros, which programs for GPTQ write
    where a model has none.
    """

    tensors: list[FileTensor]
    quantised: dict[str, Quantised]
    no_biases: tuple[str, ...] = ()


def gather(found: Sequence[FileTensor], config: QuantizationConfig | None, files: Sequence[str]) -> Gathered:
    """Group the tensors of each quantised matrix.

    Raises:
        ConfigError: tensors are missing, do not fit one another or the configuration, or have a wrong type.
    """
    folder = _Folder({tensor.name: tensor for tensor in found}, files)
    if len(folder.tensors) != len(found):
        raise ConfigError("the model's files have several tensors of one name")
    gathered = Gathered([], {})
    if config is not None:
        for elements in found:
            module, _, ending = elements.name.rpartition(".")
            if config.method == "mxfp4" and ending.endswith("_blocks"):
                matrix, quantised = _read_mxfp4(folder, elements)
                gathered.tensors.append(matrix)
                gathered.quantised[matrix.name] = quantised
            elif ending in {"qweight", "weight_packed"} or (ending == "weight" and elements.type in _MATRICES):
                matrix, quantised = _fit(_Module(folder, module, elements), config.schemes_of(module))
                gathered.tensors.append(matrix)
                gathered.quantised[matrix.name] = quantised
    modules = [name.removesuffix(".weight") for name in gathered.quantised]
    biases = [f"{module}.bias" for module in modules] if config is not None and config.method == "gptq" else []
    rest = [tensor for name, tensor in folder.tensors.items() if name not in folder.used]
    for tensor in rest:
        if config is not None and tensor.name.endswith(_UNUSED):
            continue
        gathered.tensors.append(tensor)
    return gathered._replace(no_biases=tuple(name for name in biases if folder.has_zeros(name)))


class _Folder:
    """The tensors of a folder's files; `used` names those that belong to a quantised matrix."""

    def __init__(self, tensors: dict[str, FileTensor], files: Sequence[str]) -> None:
        self.tensors = tensors
        self.used: set[str] = set()
        self._files = files

    def content(self, tensor: FileTensor) -> bytes:
        return read_tensor(tensor, self._files)

    def has_zeros(self, name: str) -> bool:
        return name in self.tensors and not any(self.content(self.tensors[name]))


class _Module:
    """The tensors of one quantised matrix."""

    def __init__(self, folder: _Folder, name: str, elements: FileTensor) -> None:
        self.name = name
        self.elements = elements
        self._folder = folder
        self._found = [elements]

    def optional(self, *endings: str) -> FileTensor | None:
        """The first tensor with one of these endings that the matrix has; None without one."""
        names = (f"{self.name}.{ending}" for ending in endings)
        tensor = next((self._folder.tensors[name] for name in names if name in self._folder.tensors), None)
        if tensor is not None:
            self._found.append(tensor)
        return tensor

    def part(self, ending: str, types: Sequence[str], shape: Shape | None = None) -> FileTensor:
        """The tensor with this ending, checked for type and, where one is given, shape."""
        tensor = self.optional(ending)
        if tensor is None:
            raise ConfigError(f"tensor {self.elements.name!r} is quantised, and the files have no {ending} of it")
        return _checked(tensor, types, shape)

    def integers(self, tensor: FileTensor) -> "npt.NDArray[np.int64]":
        """The content of a small tensor of integers."""
        import numpy as np

        stored = np.frombuffer(self._folder.content(tensor), _INTEGERS[tensor.type])
        return stored.astype(np.int64)

    def content(self, tensor: FileTensor) -> bytes:
        """The bytes of a small tensor."""
        return self._folder.content(tensor)

    def mark_used(self) -> None:
        """Mark the tensors that were found as parts of this matrix."""
        self._folder.used.update(tensor.name for tensor in self._found)


def _fit(module: _Module, schemes: Sequence[Scheme]) -> tuple[FileTensor, Quantised]:
    """The matrix, read by the first scheme that its tensors fit."""
    refusal: ConfigError | None = None
    for scheme in schemes:
        try:
            shape, quantised = _READERS[scheme.layout](module, scheme)
        except ConfigError as error:
            refusal = refusal or error
        else:
            module.mark_used()
            elements = module.elements
            type_ = elements.type if scheme.layout == "bytes" else scheme.layout
            place = (elements.file, elements.offset, elements.num_bytes)
            return FileTensor(f"{module.name}.weight", type_, shape, *place), quantised
    assert refusal is not None
    raise refusal


def _read_bytes(module: _Module, scheme: Scheme) -> tuple[Shape, Quantised]:
    rows, columns = _matrix(module.elements, _BYTES[scheme.element])
    block = (scheme.block[0] or rows, scheme.block[1] or columns)
    grid = (-(-rows // block[0]), -(-columns // block[1]))
    scales = module.optional("weight_scale", "weight_scale_inv")
    if scales is None:
        raise ConfigError(f"tensor {module.elements.name!r} is quantised, and the files have no weight_scale of it")
    zeros = module.optional("weight_zero_point")
    for tensor, types in ((scales, _FLOATS), (zeros, ("I8",))):
        if tensor is not None:
            # A single row or column of scales may be stored as a vector, or as a scalar.
            is_flat = min(grid) == 1 and math.prod(tensor.shape) == math.prod(grid)
            _checked(tensor, types, None if is_flat else grid)
    if zeros is None and not scheme.symmetric:
        raise ConfigError(f"tensor {module.elements.name!r} is asymmetric, and the files have no weight_zero_point")
    if scheme.symmetric:
        _refuse_zero_points(module, 0)
        zeros = None
    groups = _groups(module, scheme, "weight_g_idx", columns, block[1])
    return (rows, columns), Quantised("bytes", 8, block, scales, zeros, groups=groups)


def _refuse_zero_points(module: _Module, bits: int) -> None:
    """Refuse zero points of a symmetric scheme, unless all are neutral: 0, or the middle of the range if packed."""
    zeros = module.optional("weight_zero_point")
    if zeros is not None and not set(module.content(zeros)) <= {0, {4: 0x88, 8: 0x80}.get(bits, 0)}:
        raise ConfigError(f"tensor {zeros.name!r} has zero points, and the scheme of its matrix is symmetric")


def _read_packed(module: _Module, scheme: Scheme) -> tuple[Shape, Quantised]:
    stored = _matrix(module.elements, "I32")
    shape = module.integers(module.part("weight_shape", tuple(_INTEGERS), (2,)))
    rows, columns = (int(size) for size in shape)
    if columns < 1 or stored != (rows, _words(columns, scheme.bits)):
        raise ConfigError(
            f"tensor {module.elements.name!r} has the shape {stored}, which does not hold {scheme.bits} bits of a "
            f"matrix of {(rows, columns)}"
        )
    group = scheme.block[1] or columns
    num_groups = -(-columns // group)
    scales = module.part("weight_scale", _FLOATS, (rows, num_groups))
    zeros = None
    if not scheme.symmetric:
        zeros = module.part("weight_zero_point", ("I32",), (_words(rows, scheme.bits), num_groups))
    else:
        _refuse_zero_points(module, scheme.bits)
    groups = _groups(module, scheme, "weight_g_idx", columns, group)
    return (rows, columns), Quantised("packed", scheme.bits, (1, group), scales, zeros, groups=groups)


def _read_gptq(module: _Module, scheme: Scheme) -> tuple[Shape, Quantised]:
    words, rows = _matrix(module.elements, "I32")
    columns = words * 32 // scheme.bits
    group = scheme.block[1] or columns
    num_groups = -(-columns // group)
    scales = module.part("scales", _FLOATS, (num_groups, rows))
    zeros = module.part("qzeros", ("I32",), (num_groups, _words(rows, scheme.bits)))
    groups = _groups(module, scheme, "g_idx", columns, group)
    return (rows, columns), Quantised("gptq", scheme.bits, (1, group), scales, zeros, scheme.zero_offset, groups)


def _read_awq(module: _Module, scheme: Scheme) -> tuple[Shape, Quantised]:
    columns, words = _matrix(module.elements, "I32")
    rows = words * 8
    group = scheme.block[1] or columns
    num_groups = -(-columns // group)
    scales = module.part("scales", _FLOATS, (num_groups, rows))
    zeros = module.part("qzeros", ("I32",), (num_groups, words))
    return (rows, columns), Quantised("awq", 4, (1, group), scales, zeros)


def _read_ternary(module: _Module, scheme: Scheme) -> tuple[Shape, Quantised]:
    lines, columns = _matrix(module.elements, "U8")
    scale = module.part("weight_scale", _FLOATS)
    if math.prod(scale.shape) != 1:
        raise ConfigError(f"tensor {scale.name!r} has the shape {scale.shape}, and must be one number")
    shape = (4 * lines, columns)
    return shape, Quantised("ternary", scheme.bits, shape, scale, inverse_scales=scheme.inverse_scales)


def _read_mxfp4(folder: _Folder, blocks: FileTensor) -> tuple[FileTensor, Quantised]:
    """Matrices in one tensor of MXFP4 blocks: [matrices, rows, blocks of a row, bytes]."""
    name = blocks.name.removesuffix("_blocks")
    if (scales := folder.tensors.get(f"{name}_scales")) is None:
        raise ConfigError(f"tensor {blocks.name!r} is quantised, and the files have no {name}_scales")
    _checked(blocks, ("U8",), None)
    if len(blocks.shape) != 4 or blocks.shape[-1] != _MXFP4_BYTES or 0 in blocks.shape:
        raise ConfigError(f"tensor {blocks.name!r} has the shape {blocks.shape}, and must be blocks of 16 bytes")
    _checked(scales, ("U8",), blocks.shape[:-1])
    folder.used.update((blocks.name, scales.name))
    shape = (*blocks.shape[:-2], blocks.shape[-2] * 2 * _MXFP4_BYTES)
    matrix = FileTensor(name, "mxfp4", shape, blocks.file, blocks.offset, blocks.num_bytes)
    return matrix, Quantised("mxfp4", 4, (1, 2 * _MXFP4_BYTES), scales)


_READERS = {
    "bytes": _read_bytes,
    "packed": _read_packed,
    "gptq": _read_gptq,
    "awq": _read_awq,
    "ternary": _read_ternary,
}


def _groups(module: _Module, scheme: Scheme, ending: str, columns: int, group: int) -> FileTensor | None:
    """The tensor with each column's group index; None where the groups are in order."""
    if not scheme.has_group_index and module.optional(ending) is None:
        return None
    tensor = module.part(ending, ("I32",), (columns,))
    found = module.integers(tensor)
    import numpy as np

    if (found == -1).all() or (found == np.arange(columns) // group).all():  # -1: it was never filled in
        return None
    last = -(-columns // group) - 1
    if found.min() < 0 or found.max() > last:
        raise ConfigError(f"tensor {tensor.name!r} has groups {found.min()} to {found.max()}: there are 0 to {last}")
    return tensor


def _matrix(tensor: FileTensor, wanted_type: str) -> tuple[int, int]:
    _checked(tensor, (wanted_type,), None)
    if len(tensor.shape) != 2 or 0 in tensor.shape:
        raise ConfigError(f"tensor {tensor.name!r} has the shape {tensor.shape}, and must be a matrix")
    return tensor.shape[0], tensor.shape[1]


def _words(count: int, bits: int) -> int:
    """Number of 32-bit words that hold `count` integers."""
    return -(-count * bits // 32)


def _checked(tensor: FileTensor, types: Sequence[str], shape: Shape | None) -> FileTensor:
    if tensor.type not in types:
        raise ConfigError(f"tensor {tensor.name!r} has type {tensor.type}, and must be {' or '.join(types)}")
    if shape is not None and tensor.shape != shape:
        raise ConfigError(f"tensor {tensor.name!r} has the shape {tensor.shape}, and its matrix needs {shape}")
    return tensor
