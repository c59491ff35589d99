"""`python kernels/benchmarks/bench_recurrent_ops.py`: the ops with states, on the shapes of models.

One JSON object a line: the best time of many for one layer, since other work on the machine only ever adds to it,
beside that of reading and writing the states once. Layers take turns, so that each finds its states in memory.
"""

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable

import numpy as np

import pyllm_kernels
from pyllm_kernels import StateRows, select
from pyllm_kernels.ops.causal_convolution import causal_convolution, gated_convolution
from pyllm_kernels.ops.elementwise import scale_and_cap
from pyllm_kernels.ops.gated_delta_rule import gated_delta_rule
from pyllm_kernels.ops.gated_norm import gated_norm
from pyllm_kernels.ops.state_space import selective_scan, state_space
from pyllm_kernels.tensors import Array, numpy_dtype

# Rows, and tokens of each.
STEPS = {"decode.1": (1, 1), "decode.32": (32, 1), "prompt.512": (1, 512)}
KERNELS = select("cpu", "cpu")
LAYERS = 4

Call = Callable[[StateRows, Array], object]


def numbers(*shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(0).standard_normal(shape, np.float32).astype(numpy_dtype(dtype))


def convolution(tokens: int, dtype: str) -> tuple[Call, tuple[int, ...]]:
    """Qwen3-Next's, of queries, keys and values."""
    x, weight = numbers(tokens, 8192, dtype=dtype), numbers(8192, 4)
    return lambda rows, states: KERNELS[causal_convolution](x, weight, None, rows, states), (3, 8192)


def short_convolution(tokens: int, dtype: str) -> tuple[Call, tuple[int, ...]]:
    """LFM2-1.2B's."""
    x, weight = numbers(tokens, 3 * 2048, dtype=dtype), numbers(2048, 3)
    return lambda rows, states: KERNELS[gated_convolution](x, weight, None, rows, states), (2, 2048)


def delta_rule(tokens: int, dtype: str) -> tuple[Call, tuple[int, ...]]:
    """Qwen3-Next's: 16 key heads and 32 value heads of 128."""
    qkv, gate, scale = numbers(tokens, 8192, dtype=dtype), numbers(tokens, 32, dtype=dtype), numbers(32)
    tensors = qkv, gate, gate, scale, scale
    return lambda rows, states: KERNELS[gated_delta_rule](*tensors, rows, states, 16), (32, 128, 128)


def mamba_2(tokens: int, dtype: str) -> tuple[Call, tuple[int, ...]]:
    """64 heads of 64, with states of 128."""
    x, b, step = numbers(tokens, 4096, dtype=dtype), numbers(tokens, 128, dtype=dtype), numbers(tokens, 64, dtype=dtype)
    tensors, limits = (x, b, b, step, *numbers(3, 64)), (0.0, float("inf"))
    return lambda rows, states: KERNELS[state_space](*tensors, rows, states, limits), (64, 64, 128)


def mamba(tokens: int, dtype: str) -> tuple[Call, tuple[int, ...]]:
    """Jamba-Mini's: 8192 channels with states of 16."""
    x, b = numbers(tokens, 8192, dtype=dtype), numbers(tokens, 16, dtype=dtype)
    tensors = x, x, b, b, numbers(8192), numbers(8192, 16), numbers(8192)
    return lambda rows, states: KERNELS[selective_scan](*tensors, rows, states), (8192, 16)


def norm(tokens: int, dtype: str) -> tuple[Call, tuple[int, ...]]:
    """Qwen3-Next's, of 32 heads; it has no states."""
    x, weight = numbers(tokens, 4096, dtype=dtype), numbers(128)
    return lambda rows, states: KERNELS[gated_norm](x, x, weight, 1e-6, 128, False), (1,)


OPS = {
    "causal_convolution": convolution,
    "gated_convolution": short_convolution,
    "gated_delta_rule": delta_rule,
    "state_space": mamba_2,
    "selective_scan": mamba,
    "gated_norm": norm,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--ops", nargs="+", choices=OPS, default=list(OPS))
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure")
    arguments = parser.parse_args()
    pyllm_kernels.set_num_threads(arguments.threads)
    pyllm_kernels.stay_awake(True)
    for op, step in itertools.product(arguments.ops, arguments.steps):
        record = {"name": f"recurrent_ops.{op}.{step}", "dtype": arguments.dtype, "threads": arguments.threads}
        record |= {"instruction_set": pyllm_kernels.instruction_set()}
        print(json.dumps(record | times(op, step, arguments.dtype, arguments.seconds)), flush=True)
    pyllm_kernels.stay_awake(False)


def times(op: str, step: str, dtype: str, seconds: float) -> dict[str, float]:
    """Microseconds of an op, and of a pass through its states."""
    count, length = STEPS[step]
    call, shape = OPS[op](count * length, dtype)
    layers = [numbers(count, *shape) for _ in range(LAYERS)]
    every = np.arange(count, dtype=np.int32)
    rows = StateRows(np.arange(0, count * length + 1, length, dtype=np.int32), every, every)

    def pass_through(states: Array) -> object:
        return KERNELS[scale_and_cap](states.reshape(-1, shape[-1]), 1.0)

    return {
        "us": best_time(lambda states: call(rows, states), layers, seconds),
        "us_of_states": best_time(pass_through, layers, seconds),
    }


def best_time(call: Callable[[Array], object], layers: list[Array], seconds: float) -> float:
    """The least microseconds of one call; the layers take turns."""
    best = float("inf")
    end = time.perf_counter() + seconds
    for states in itertools.cycle(layers):
        started = time.perf_counter()
        if started > end:
            break
        call(states)
        best = min(best, time.perf_counter() - started)
    return round(best * 1e6, 1)


if __name__ == "__main__":
    main()
