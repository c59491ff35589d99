"""Quantises the matrices of a tiny model in each way that Hugging Face folders know, plainly and number by number.

Beside each goes what its numbers are: `scale * (integer - zero point)`, in float32.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pyllm_kernels.tensors import numpy_dtype

from tests.safetensors_arrays import load_file, save_file

Matrix = npt.NDArray[Any]
SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32, "heads": 4, "kv_heads": 2}


class Quantised(NamedTuple):
    """The tensors of a matrix by the endings of their names, and the matrix that they stand for."""

    tensors: dict[str, Matrix]
    numbers: Matrix


class Variant(NamedTuple):
    """What config.json says, and what becomes of a matrix."""

    config: dict[str, Any]
    quantise: Callable[[Matrix], Quantised]


def write_quantised(source: str, folder: Path, variant: Variant, floats: Path | None = None) -> str:
    """Quantise a tiny model's linear layers into a folder; into `floats` goes the model of the dequantised weights."""
    tensors, dequantised = {}, {}
    for name, weight in load_file(f"{source}/model.safetensors").items():
        dequantised[name] = tensors[name] = weight
        if "_proj." in name:
            found = variant.quantise(weight)
            del tensors[name]
            module = name.removesuffix(".weight")
            tensors |= {f"{module}.{ending}": tensor for ending, tensor in found.tensors.items()}
            dequantised[name] = found.numbers
    config = json.loads(Path(source, "config.json").read_text())
    _write(Path(source), folder, tensors, config | {"quantization_config": variant.config})
    if floats is not None:
        _write(Path(source), floats, dequantised, config)
    return str(folder)


def _write(source: Path, folder: Path, tensors: Mapping[str, Matrix], config: dict[str, Any]) -> None:
    shutil.copytree(source, folder, dirs_exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def words_of(rows: Matrix, bits: int) -> Matrix:
    """Integers of each row in words of 32 bits, the first in the lowest bits; zeros fill the last word."""
    per_word = 32 // bits
    filled = np.pad(rows, [(0, 0), (0, -rows.shape[1] % per_word)]).reshape(len(rows), -1, per_word)
    words = (filled.astype(np.uint32) << np.arange(0, 32, bits, dtype=np.uint32)).sum(-1, dtype=np.uint32)
    found: Matrix = words.view(np.int32)
    return found


def integers_of(weight: Matrix, groups: Matrix, bits: int, symmetric: bool) -> tuple[Matrix, Matrix, Matrix]:
    """The integers from 0 up, and the float16 scales and the zero points [rows, groups]."""
    num_groups = int(groups.max()) + 1
    scales = np.zeros((len(weight), num_groups), np.float16)
    zeros = np.zeros((len(weight), num_groups), np.int64)
    integers = np.zeros(weight.shape, np.int64)
    for group in range(num_groups):
        columns = groups == group
        part = weight[:, columns].astype(np.float64)
        low, high = part.min(1), part.max(1)
        if symmetric:
            scales[:, group] = np.maximum(np.abs(low), np.abs(high)) / (2 ** (bits - 1) - 0.5)
            zeros[:, group] = 2 ** (bits - 1)
        else:
            scales[:, group] = (high - low) / (2**bits - 1)
            zeros[:, group] = np.clip(np.round(-low / scales[:, group]), 1, 2**bits - 1)
        steps = np.round(part / scales[:, group : group + 1].astype(np.float64)) + zeros[:, group : group + 1]
        integers[:, columns] = np.clip(steps, 0, 2**bits - 1)
    return integers, scales, zeros


def numbers_of(integers: Matrix, scales: Matrix, zeros: Matrix, groups: Matrix) -> Matrix:
    steps = (integers - zeros[:, groups]).astype(np.float32)
    numbers: Matrix = scales.astype(np.float32)[:, groups] * steps
    return numbers


def groups_in_order(columns: int, group_size: int) -> Matrix:
    return np.arange(columns) // (columns if group_size == -1 else group_size)


def groups_shuffled(columns: int, group_size: int) -> Matrix:
    return np.random.default_rng(columns).permutation(groups_in_order(columns, group_size))


def awq(group_size: int = 32) -> Variant:
    def quantise(weight: Matrix) -> Quantised:
        groups = groups_in_order(weight.shape[1], group_size)
        integers, scales, zeros = integers_of(weight, groups, 4, symmetric=False)
        interleave = np.arange(len(weight)).reshape(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(-1)
        tensors = {
            "qweight": words_of(integers.T[:, interleave], 4),
            "qzeros": words_of(zeros.T[:, interleave], 4),
            "scales": scales.T,
        }
        return Quantised(tensors, numbers_of(integers, scales, zeros, groups))

    config = {"quant_method": "awq", "bits": 4, "group_size": group_size, "version": "gemm", "zero_point": True}
    return Variant(config | {"modules_to_not_convert": None}, quantise)


def gptq(
    group_size: int = 32, bits: int = 4, symmetric: bool = True, act_order: bool = False, version: str = "gptq"
) -> Variant:
    def quantise(weight: Matrix) -> Quantised:
        groups = (groups_shuffled if act_order else groups_in_order)(weight.shape[1], group_size)
        integers, scales, zeros = integers_of(weight, groups, bits, symmetric)
        tensors = {
            "qweight": words_of(integers, bits).T,
            "qzeros": words_of((zeros - (version == "gptq")).T, bits),
            "scales": scales.T,
            "g_idx": groups.astype(np.int32),
            "bias": np.zeros(len(weight), np.float16),
        }
        return Quantised(tensors, numbers_of(integers, scales, zeros, groups))

    config = {"quant_method": "gptq", "bits": bits, "group_size": group_size, "sym": symmetric, "desc_act": act_order}
    return Variant(config | {"checkpoint_format": version}, quantise)


def packed(
    group_size: int = 32,
    bits: int = 4,
    symmetric: bool = True,
    act_order: bool = False,
    scale_dtype: str = "float16",
) -> Variant:
    """compressed-tensors' pack-quantized."""

    def quantise(weight: Matrix) -> Quantised:
        groups = (groups_shuffled if act_order else groups_in_order)(weight.shape[1], group_size)
        integers, scales, zeros = integers_of(weight, groups, bits, symmetric)
        stored = scales.astype(numpy_dtype(scale_dtype))
        tensors = {
            "weight_packed": words_of(integers, bits),
            "weight_scale": stored,
            "weight_shape": np.array(weight.shape),
        }
        if not symmetric:
            tensors["weight_zero_point"] = words_of(zeros.T, bits).T
        if act_order:
            tensors["weight_g_idx"] = groups.astype(np.int32)
        return Quantised(tensors, numbers_of(integers, stored, zeros, groups))

    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "actorder": "group" if act_order else None}
    strategy = {"strategy": "channel"} if group_size == -1 else {"strategy": "group", "group_size": group_size}
    return Variant(compressed_tensors("pack-quantized", weights | strategy), quantise)


def int8(strategy: str = "channel", symmetric: bool = True, storage: str = "int-quantized") -> Variant:
    """compressed-tensors' int8."""

    def quantise(weight: Matrix) -> Quantised:
        whole = weight.reshape(1, -1) if strategy == "tensor" else weight
        groups = groups_in_order(whole.shape[1], 32 if strategy == "group" else -1)
        integers, scales, zeros = integers_of(whole, groups, 8, symmetric)
        tensors = {
            "weight": (integers - 128).astype(np.int8).reshape(weight.shape),
            "weight_scale": scales.reshape(-1 if strategy == "tensor" else scales.shape),
            "input_scale": np.ones(1, np.float32),
        }
        if not symmetric:
            tensors["weight_zero_point"] = (zeros - 128).astype(np.int8)
        return Quantised(tensors, numbers_of(integers, scales, zeros, groups).reshape(weight.shape))

    weights = {"num_bits": 8, "type": "int", "strategy": strategy, "symmetric": symmetric}
    return Variant(compressed_tensors(storage, weights | ({"group_size": 32} if strategy == "group" else {})), quantise)


def fp8(block: tuple[int, int], by: str = "fp8") -> Variant:
    """Scales for blocks of rows and columns, 0 for all; of the method fp8, or in the formats of compressed-tensors."""

    def quantise(weight: Matrix) -> Quantised:
        rows, columns = block[0] or len(weight), block[1] or weight.shape[1]
        numbers, elements = np.zeros_like(weight), np.zeros(weight.shape, numpy_dtype("float8_e4m3fn"))
        scales = np.zeros((-(-weight.shape[0] // rows), -(-weight.shape[1] // columns)), np.float32)
        for row in range(len(scales)):
            for column in range(scales.shape[1]):
                here = slice(row * rows, (row + 1) * rows), slice(column * columns, (column + 1) * columns)
                scale = scales[row, column] = np.abs(weight[here]).max() / 448
                elements[here] = (weight[here] / scale).astype(elements.dtype)
                numbers[here] = scale * elements[here].astype(np.float32)
        name = "weight_scale_inv" if by == "fp8" and block[1] else "weight_scale"
        return Quantised({"weight": elements, name: scales.reshape(()) if scales.size == 1 else scales}, numbers)

    if by == "fp8":
        blocks = {"weight_block_size": list(block)} if block[1] else {}
        config = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"} | blocks
        return Variant(config | {"modules_to_not_convert": ["lm_head"]}, quantise)
    strategy = "block" if block[1] else "channel" if block[0] else "tensor"
    weights = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True}
    return Variant(compressed_tensors(by, weights | {"block_structure": list(block) if block[1] else None}), quantise)


def bitnet(inverse_scales: bool = False) -> Variant:
    """Three values, in quarters of the rows, as `pack_weights` of transformers writes them."""

    def quantise(weight: Matrix) -> Quantised:
        mean = np.abs(weight).mean()
        scale = np.array([1 / mean if inverse_scales else mean]).astype(numpy_dtype("bfloat16"))
        factor = 1 / scale.astype(np.float32) if inverse_scales else scale.astype(np.float32)
        values = np.clip(np.round(weight / factor), -1, 1).astype(np.int8)
        quarters = (values + 1).astype(np.uint8).reshape(4, -1, weight.shape[1])
        packed = sum(quarter << 2 * index for index, quarter in enumerate(quarters))
        return Quantised({"weight": np.asarray(packed, np.uint8), "weight_scale": scale}, factor * values)

    kind = {} if inverse_scales else {"linear_class": "autobitlinear", "quantization_mode": "offline"}
    return Variant({"quant_method": "bitnet", "modules_to_not_convert": None} | kind, quantise)


def compressed_tensors(storage: str, weights: dict[str, Any]) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": storage,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*embed_tokens"],
        "kv_cache_scheme": None,
    }


# And what the kernels multiply such weights as.
VARIANTS: dict[str, tuple[Variant, str]] = {
    "awq": (awq(), "q4_1"),
    "awq of whole rows": (awq(-1), "q4_1"),
    "gptq": (gptq(), "q4_0"),
    "gptq of whole rows": (gptq(-1), "q4_0"),
    "gptq of groups of 16": (gptq(16), "q8_0"),
    "gptq asymmetric": (gptq(64, symmetric=False), "q4_1"),
    "gptq in act-order": (gptq(symmetric=False, act_order=True), "q8_0"),
    "gptq v2": (gptq(version="gptq_v2"), "q4_0"),
    "gptq 8 bits": (gptq(bits=8), "q8_0"),
    "gptq 8 bits of whole rows": (gptq(-1, bits=8), "int8"),
    "gptq 8 bits asymmetric": (gptq(bits=8, symmetric=False), "q8_0"),
    "packed": (packed(), "q4_0"),
    "packed bfloat16 scales": (packed(scale_dtype="bfloat16"), "q4_0"),
    "packed of whole rows": (packed(-1), "q4_0"),
    "packed asymmetric": (packed(symmetric=False), "q4_1"),
    "packed in act-order": (packed(act_order=True), "q8_0"),
    "packed 8 bits": (packed(bits=8), "q8_0"),
    "packed 8 bits of whole rows": (packed(-1, bits=8), "int8"),
    "int8": (int8(), "int8"),
    "int8 naive": (int8(storage="naive-quantized"), "int8"),
    "int8 of the tensor": (int8("tensor"), "int8"),
    "int8 of groups": (int8("group"), "q8_0"),
    "int8 asymmetric": (int8(symmetric=False), "q8_0"),
    "fp8 of blocks": (fp8((48, 32)), "float8_e4m3fn"),
    "fp8 of the tensor": (fp8((0, 0)), "float8_e4m3fn"),
    "fp8 of rows": (fp8((1, 0)), "float8_e4m3fn"),
    "fp8 of compressed-tensors": (fp8((1, 0), "float-quantized"), "float8_e4m3fn"),
    "fp8 of compressed-tensors' blocks": (fp8((32, 64), "float-quantized"), "float8_e4m3fn"),
    "bitnet": (bitnet(), "q4_0"),
    "bitnet of inverse scales": (bitnet(inverse_scales=True), "q4_0"),
    "fp8 of compressed-tensors' tensor": (fp8((0, 0), "naive-quantized"), "float8_e4m3fn"),
}
