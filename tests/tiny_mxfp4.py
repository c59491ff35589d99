"""Writes the experts of a gpt-oss folder in MXFP4, number by number; `save_pretrained` of transformers does not.

A block is 32 floats of 4 bits, two a byte and the first in the low half, and a scale, which is an exponent of two.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.safetensors_arrays import load_file, save_file

Bytes = npt.NDArray[np.uint8]
CONFIG = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
_MAGNITUDES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def quantised(matrix: npt.NDArray[np.float32]) -> tuple[Bytes, Bytes]:
    """The blocks [..., columns / 32, 16] and the scales [..., columns / 32] of rows of numbers [..., columns]."""
    groups = matrix.astype(np.float64).reshape(*matrix.shape[:-1], -1, 32)
    largest = np.abs(groups).max(-1)
    # Such that the largest becomes 3 to 6.
    exponents = np.ceil(np.log2(np.maximum(largest, 2.0**-120) / 6))
    steps = groups / 2.0 ** exponents[..., None]
    codes = np.abs(np.abs(steps)[..., None] - _MAGNITUDES).argmin(-1) + 8 * (steps < 0)
    blocks = codes[..., 0::2] + 16 * codes[..., 1::2]
    return blocks.astype(np.uint8), (exponents + 127).astype(np.uint8)


def numbers(blocks: Bytes, scales: Bytes) -> npt.NDArray[np.float32]:
    """What they stand for, [..., columns]."""
    codes = np.zeros((*blocks.shape[:-1], 32), np.int64)
    codes[..., 0::2], codes[..., 1::2] = blocks % 16, blocks // 16
    signs = np.where(codes < 8, 1.0, -1.0)
    powers = 2.0 ** (scales.astype(np.float64) - 127)
    found = signs * _MAGNITUDES[codes % 8] * powers[..., None]
    return found.reshape(*blocks.shape[:-2], -1).astype(np.float32)


def write_mxfp4(source: str, folder: Path, floats: Path) -> str:
    """Quantise a gpt-oss folder into another; `floats` gets the model of the dequantised weights."""
    tensors, dequantised = {}, {}
    for name, tensor in load_file(f"{source}/model.safetensors").items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            blocks, scales = quantised(np.ascontiguousarray(tensor.swapaxes(1, 2)))
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            dequantised[name] = numbers(blocks, scales).swapaxes(1, 2)
        else:
            tensors[name] = dequantised[name] = tensor
    config = json.loads(Path(source, "config.json").read_text())
    for place, content, fields in (
        (folder, tensors, config | {"quantization_config": CONFIG}),
        (floats, dequantised, config),
    ):
        shutil.copytree(source, place, dirs_exist_ok=True)
        save_file(content, place / "model.safetensors", metadata={"format": "pt"})
        (place / "config.json").write_text(json.dumps(fields))
    return str(folder)
