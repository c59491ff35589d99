"""`python kernels/benchmarks/bench_linear.py`: our linears beside torch's bfloat16, on a model's shapes.

One JSON object a line: the best time of many, since other work on the machine only ever adds to it. "read" is a sum of
the same weights as whole numbers, which takes as long as to read them. Every call has
weights of its own, more in all than the second cache holds, as a step has them. The last line of a format and number of
rows adds up a step: all layers and the head, each at its best.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

import pyllm_kernels
from pyllm_kernels.matrix_rows import GGUF_BLOCKS, MatrixRows, empty_bytes
from pyllm_kernels.ops.packed_linear import INT8_BLOCKS, PackedLinear, pack_rows, packed_linear
from pyllm_kernels.registry import select
from pyllm_kernels.tensors import Array, numpy_dtype

MODELS = {
    # SmolLM2-135M, whose inputs K-quants do not fill, and a Llama of 1B.
    "135m": {
        "qkv": (960, 576),
        "output": (576, 576),
        "gate_up": (3072, 576),
        "down": (576, 1536),
        "head": (49152, 576),
    },
    "1b": {
        "qkv": (3072, 2048),
        "output": (2048, 2048),
        "gate_up": (16384, 2048),
        "down": (2048, 8192),
        "head": (49152, 2048),
    },
}
NUM_LAYERS = {"135m": 30, "1b": 16}
FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
INT8_OF_BLOCKS = {f"int8 of {kind}": kind for kind in INT8_BLOCKS}
FORMATS = [*FLOATS, "int8", *INT8_OF_BLOCKS, *GGUF_BLOCKS]
COLD_BYTES = 64 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--model", choices=MODELS, default="135m")
    parser.add_argument("--shapes", nargs="+", choices=MODELS["1b"], default=list(MODELS["1b"]))
    parser.add_argument("--seconds", type=float, default=0.3, help="for each figure, both sides together")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    pyllm_kernels.set_num_threads(arguments.threads)
    shapes = MODELS[arguments.model]
    machine = {"threads": arguments.threads, "instruction_set": pyllm_kernels.instruction_set()}
    with torch.inference_mode():
        for weight_format in arguments.formats:
            for rows in arguments.rows:
                step = dict.fromkeys(("pyllm", "torch", "read"), 0.0)
                for name in arguments.shapes:
                    sides, weight_bytes = linears(weight_format, *shapes[name], rows)
                    times = best_times(sides, arguments.seconds)
                    for side, seconds in times.items():
                        step[side] += seconds * (1 if name == "head" else NUM_LAYERS[arguments.model])
                    record = {
                        "name": f"linear.{name}",
                        "model": arguments.model,
                        "format": weight_format,
                        "rows": rows,
                    } | machine
                    record["pyllm"] = {
                        "us": round(times["pyllm"] * 1e6, 1),
                        "GB/s": round(weight_bytes / times["pyllm"] / 1e9, 1),
                        "GOP/s": round(2 * rows * shapes[name][0] * shapes[name][1] / times["pyllm"] / 1e9, 1),
                    }
                    record["read"] = {"GB/s": round(weight_bytes / times["read"] / 1e9, 1)}
                    print(json.dumps(record | beside(times, 1e6, "us")), flush=True)
                record = {"name": "linear.step", "format": weight_format, "rows": rows} | machine
                record["pyllm"] = {"ms": round(step["pyllm"] * 1e3, 2)}
                record["read"] = {"ms": round(step["read"] * 1e3, 2)}
                print(json.dumps(record | beside(step, 1e3, "ms")), flush=True)


def beside(times: dict[str, float], scale: float, unit: str) -> dict[str, object]:
    return {
        "torch": {unit: round(times["torch"] * scale, 2)},
        "speedup": round(times["torch"] / times["pyllm"], 2),
    }


def linears(
    weight_format: str, out_features: int, in_features: int, rows: int
) -> tuple[dict[str, list[Callable[[], object]]], int]:
    """Our products, torch's, and reading: calls to be made in turn. And the bytes of one of our matrices."""
    kernels = select("cpu", "cpu")
    torch_dtype = FLOATS.get(weight_format, torch.bfloat16)
    first = pack(weight_format, out_features, in_features)
    num_copies = max(2, COLD_BYTES // first.data.nbytes)
    packed = [first] + [replace(first, data=copied(first.data)) for _ in range(num_copies - 1)]
    x = torch.randn(rows, in_features)
    ours, theirs = x.numpy().astype(numpy_dtype(first.dtype)), x.to(torch_dtype)
    out = np.empty((rows, out_features), ours.dtype)  # as a step has it: nothing is allocated
    their_out = torch.empty(rows, out_features, dtype=torch_dtype)
    weight = torch.randn(out_features, in_features).to(torch_dtype)
    weights = [weight.clone() for _ in range(max(2, COLD_BYTES // weight.nbytes))]
    calls: dict[str, list[Callable[[], object]]] = {
        "pyllm": [lambda packed=packed: kernels[packed_linear](ours, packed, out) for packed in packed],
        "torch": [lambda weight=weight: torch.mm(theirs, weight.T, out=their_out) for weight in weights],
        "read": [lambda packed=packed: packed.data.view(np.int64).sum() for packed in packed],
    }
    return calls, first.data.nbytes


def copied(data: Array) -> Array:
    """A copy, as aligned as the memory of packed matrices is."""
    copy = empty_bytes(data.nbytes).view(data.dtype)
    copy[...] = data
    return copy


def pack(weight_format: str, out_features: int, in_features: int) -> PackedLinear:
    kernels = select("cpu", "cpu")
    block_format = INT8_OF_BLOCKS.get(weight_format, weight_format)
    if block_format in GGUF_BLOCKS:
        features, block_bytes = GGUF_BLOCKS[block_format]
        # Small scales, whatever integers.
        blocks = np.full((out_features, in_features // features * block_bytes), 0x21, np.uint8)
        rows = MatrixRows.of(blocks, block_format)
        return kernels[pack_rows]([rows], "int8" if weight_format in INT8_OF_BLOCKS else weight_format, "bfloat16")
    dtype = weight_format if weight_format in FLOATS else "bfloat16"
    numbers = np.random.default_rng(0).standard_normal((out_features, in_features), np.float32)
    rows = MatrixRows.of(numbers.astype(numpy_dtype(dtype)))
    return kernels[pack_rows]([rows], weight_format, dtype)


def best_times(sides: dict[str, list[Callable[[], object]]], seconds: float) -> dict[str, float]:
    """The least seconds of one call of each side."""
    best = dict.fromkeys(sides, float("inf"))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for side, calls in sides.items():
            for call in calls:
                started = time.perf_counter()
                call()
                best[side] = min(best[side], time.perf_counter() - started)
    return best


if __name__ == "__main__":
    main()
