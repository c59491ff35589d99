"""`python kernels/benchmarks/bench_linear_quantised.py`: quantised linears beside torch's bfloat16, on a CUDA card.

One JSON object a line: the median of many runs, each a replay of a CUDA graph with nothing of use in the caches, so
that neither the host's time to launch nor a warm cache counts.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable

import torch

from pyllm_kernels import select
from pyllm_kernels.ops.linear_fp8 import linear_fp8
from pyllm_kernels.ops.linear_w4a16 import linear_w4a16
from pyllm_kernels.ops.linear_w8a8 import linear_w8a8
from pyllm_kernels.ops.linear_w8a16 import linear_w8a16

# Llama 3.1 8B.
SHAPES = {"qkv": (6144, 4096), "output": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
FORMATS = ["w4a16 g32", "w4a16 g128", "w8a16 g32", "w8a8", "fp8", "fp8 blocks"]
OTHER_BYTES = 512 << 20  # More than any card's second-level cache holds.
REPETITIONS = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 16, 32, 128, 512, 4096])
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA card: torch sees none here")
    card = torch.cuda.get_device_name()
    other = torch.zeros(OTHER_BYTES // 4, device="cuda")
    with torch.inference_mode():
        for name in arguments.shapes:
            out_features, in_features = SHAPES[name]
            weight = torch.randn(out_features, in_features, dtype=torch.bfloat16, device="cuda")
            for rows in arguments.rows:
                x = torch.randn(rows, in_features, dtype=torch.bfloat16, device="cuda")
                theirs = seconds(lambda x=x, weight=weight: torch.mm(x, weight.T), other)
                for weight_format in arguments.formats:
                    linear, weight_bytes = quantised(weight_format, out_features, in_features)
                    ours = seconds(lambda x=x, linear=linear: linear(x), other)
                    record = {"name": f"linear.{name}", "format": weight_format, "rows": rows, "card": card}
                    record["pyllm"] = {
                        "us": round(ours * 1e6, 1),
                        "GB/s": round(weight_bytes / ours / 1e9, 1),
                        "TOP/s": round(2 * rows * out_features * in_features / ours / 1e12, 2),
                    }
                    record["torch"] = {"us": round(theirs * 1e6, 1)}
                    record["speedup"] = round(theirs / ours, 2)
                    print(json.dumps(record), flush=True)


def quantised(
    weight_format: str, out_features: int, in_features: int
) -> tuple[Callable[[torch.Tensor], torch.Tensor], int]:
    """A linear of a random weight, and the bytes of all that it reads but x."""
    kernels = select("triton", "cuda")
    if weight_format.startswith("w4a16"):
        groups = in_features // int(weight_format.partition("g")[2])
        integers = torch.randint(0, 256, (out_features, in_features // 2), dtype=torch.uint8, device="cuda")
        scales, minimums = torch.rand(2, out_features, groups, device="cuda").half()
        return lambda x: kernels[linear_w4a16](x, integers, scales, minimums), integers.nbytes + 2 * scales.nbytes
    if weight_format.startswith("w8"):
        integers = torch.randint(-128, 128, (out_features, in_features), dtype=torch.int8, device="cuda")
    if weight_format.startswith("w8a16"):
        scales = torch.rand(out_features, in_features // int(weight_format.partition("g")[2]), device="cuda").half()
        return lambda x: kernels[linear_w8a16](x, integers, scales), integers.nbytes + scales.nbytes
    if weight_format == "w8a8":
        scales = torch.rand(out_features, device="cuda")
        return lambda x: kernels[linear_w8a8](x, integers, scales), integers.nbytes + scales.nbytes
    weight = torch.randn(out_features, in_features, device="cuda").to(torch.float8_e4m3fn)
    shape = (-(-out_features // 128), -(-in_features // 128)) if weight_format == "fp8 blocks" else (out_features, 1)
    scales = torch.rand(shape, device="cuda")
    return lambda x: kernels[linear_fp8](x, weight, scales), weight.nbytes + scales.nbytes


def seconds(function: Callable[[], object], other: torch.Tensor) -> float:
    for _ in range(3):  # Compiles, and lets libraries choose their kernels.
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    times = []
    for _ in range(REPETITIONS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        other.sum()  # Empties the caches, and gives the host time to launch what follows.
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return statistics.median(times)


if __name__ == "__main__":
    main()
