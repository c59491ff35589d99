"""`python kernels/benchmarks/bench_linear.py`: our linears beside torch's, in turns, on the shapes of SmolLM2-135M.

One JSON object a line: the best time of many, since other work on the machine only ever adds to it. Every call has
weights of its own, more in all than the second cache holds, as a step has them.
"""

import argparse
import json
import os
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

import pyllm_kernels
from pyllm_kernels import select

SHAPES = {
    "qkv": (960, 576),
    "output": (576, 576),
    "gate_up": (3072, 576),
    "down": (576, 1536),
    "head": (49152, 576),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
COLD_BYTES = 32 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--seconds", type=float, default=0.5, help="for each figure, both sides together")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    pyllm_kernels.set_num_threads(arguments.threads)
    with torch.inference_mode():
        for dtype in arguments.dtypes:
            for name, (out_features, in_features) in SHAPES.items():
                for rows in arguments.rows:
                    sides = linears(DTYPES[dtype], out_features, in_features, rows)
                    times = best_times(sides, arguments.seconds)
                    work = {
                        "GB/s": out_features * in_features * DTYPES[dtype].itemsize / 1e9,
                        "GFLOP/s": 2 * rows * out_features * in_features / 1e9,
                    }
                    record = {"name": f"linear.{name}", "dtype": dtype, "rows": rows, "threads": arguments.threads}
                    record["instruction_set"] = pyllm_kernels.instruction_set()
                    for side, seconds in times.items():
                        record[side] = {"us": round(seconds * 1e6, 1)}
                        record[side] |= {unit: round(amount / seconds, 1) for unit, amount in work.items()}
                    record["speedup"] = round(times["torch"] / times["pyllm"], 2)
                    print(json.dumps(record), flush=True)


def linears(
    dtype: torch.dtype, out_features: int, in_features: int, rows: int
) -> dict[str, list[Callable[[], object]]]:
    """The same products, by us and by torch: calls to be made in turn."""
    kernels = select("cpu", "cpu")
    copies = max(1, COLD_BYTES // (out_features * in_features * dtype.itemsize))
    x = torch.randn(rows, in_features).to(dtype)
    weights = [torch.randn(out_features, in_features).to(dtype) for _ in range(copies)]
    packed = [kernels.pack_linear(weight) for weight in weights]
    return {
        "pyllm": [lambda packed=packed: kernels.packed_linear(x, packed) for packed in packed],
        "torch": [lambda weight=weight: F.linear(x, weight) for weight in weights],
    }


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
