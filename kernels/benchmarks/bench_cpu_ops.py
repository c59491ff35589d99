"""`python kernels/benchmarks/bench_cpu_ops.py`: the ops beside the linears, on the shapes of SmolLM2-135M, 30 layers.

One JSON object a line: the best time of many for a step's 30 calls, since other work on the machine only ever adds to
it. Every layer has a cache of its own, as a step has them. Captured as a graph, unless `--eager` is given.
"""

import argparse
import json
import os
import time
from collections.abc import Callable

import numpy as np

import pyllm_kernels
from pyllm_kernels import AttentionLayer, AttentionMetadata, select
from pyllm_kernels.graph import Graph
from pyllm_kernels.ops.activation import activation
from pyllm_kernels.ops.add_lora import LoraMatrices, add_lora
from pyllm_kernels.ops.norm import add_rms_norm
from pyllm_kernels.ops.paged_attention import paged_attention
from pyllm_kernels.ops.rope_and_kv_write import rope_and_kv_write
from pyllm_kernels.tensors import Array, numpy_dtype, split

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 30, 576, 1536, 9, 3, 64
BLOCK_SIZE = 16
ADAPTERS, RANK = 8, 16
DTYPES = ["float32", "bfloat16"]
# Rows, query tokens of each, tokens in the cache before them.
STEPS = {
    "decode.1x192": (1, 1, 191),
    "decode.8x192": (8, 1, 191),
    "decode.32x192": (32, 1, 191),
    "decode.32x2048": (32, 1, 2047),
    "decode.1x8192": (1, 1, 8191),
    "prefill.1x128": (1, 128, 0),
    "prefill.16x128": (16, 128, 0),
    "prefill.1x2048": (1, 2048, 0),
    "chunk.1x512+1536": (1, 512, 1536),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["bfloat16"])
    parser.add_argument("--cache-dtype", choices=DTYPES, help="as the dtype, if not given")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--ops", nargs="+", default=["attention", "rope", "norm", "activation", "lora"])
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure")
    parser.add_argument("--eager", action="store_true", help="without a graph")
    arguments = parser.parse_args()
    pyllm_kernels.set_num_threads(arguments.threads)
    for dtype in arguments.dtypes:
        for name in arguments.steps:
            step = Step(*STEPS[name], dtype, arguments.cache_dtype or dtype)
            for op in arguments.ops:
                run = step.calls(op) if arguments.eager else step.captured(op)
                record = {"name": f"cpu_ops.{op}.{name}", "dtype": dtype, "cache": arguments.cache_dtype or dtype}
                record |= {"threads": arguments.threads, "instruction_set": pyllm_kernels.instruction_set()}
                record |= {"graph": not arguments.eager, "ms": round(best_time(run, arguments.seconds) * 1e3, 3)}
                print(json.dumps(record), flush=True)


class Step:
    """The arrays of one step of all layers."""

    def __init__(self, rows: int, queries: int, context: int, dtype: str, cache_dtype: str) -> None:
        rng = np.random.default_rng(0)

        def normal(*shape: int, dtype: str = dtype) -> Array:
            return rng.standard_normal(shape, np.float32).astype(numpy_dtype(dtype))

        self.rows, self.tokens = rows, rows * queries
        length = queries + context
        blocks = -(-length // BLOCK_SIZE)
        shape = (rows * blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
        self.caches = [(normal(*shape, dtype=cache_dtype), normal(*shape, dtype=cache_dtype)) for _ in range(LAYERS)]
        self.qkv = normal(self.tokens, HEADS + 2 * KV_HEADS, HEAD_DIM)
        self.x, self.residual = normal(self.tokens, HIDDEN), normal(self.tokens, HIDDEN)
        self.gate_up = normal(self.tokens, 2 * INTERMEDIATE)
        self.weight = normal(HIDDEN)
        self.lora = LoraMatrices(
            down=normal(ADAPTERS, RANK, HIDDEN),
            up=normal(ADAPTERS, RANK, 2 * INTERMEDIATE),
            ranks=np.full((ADAPTERS, 1), RANK, np.int32),
            sizes=(2 * INTERMEDIATE,),
        )
        self.adapters = np.repeat(np.arange(rows, dtype=np.int32) % ADAPTERS, queries)
        self.positions = np.tile(np.arange(context, length, dtype=np.int32), rows)
        self.cos_sin = normal(length, HEAD_DIM, dtype="float32")
        tables = rng.permutation(rows * blocks).astype(np.int32).reshape(rows, blocks)
        cells = tables[:, :, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE, dtype=np.int32)
        self.slot_mapping = cells.reshape(rows, -1)[:, context:length].flatten()
        self.metadata = AttentionMetadata(
            block_tables=tables,
            slots=np.arange(rows, dtype=np.int32),
            query_starts=np.arange(0, self.tokens + 1, queries, dtype=np.int32),
            sequence_lengths=np.full(rows, length, np.int32),
            max_query_length=queries,
            max_sequence_length=length,
            num_tokens=self.tokens,
        )

    def calls(self, op: str) -> Callable[[], object]:
        """One op, once a layer."""
        kernels = select("cpu", "cpu")
        query, key, value = split(self.qkv, [HEADS, KV_HEADS, KV_HEADS])
        layer = AttentionLayer(HEAD_DIM**-0.5)

        def run(keys: Array, values: Array) -> object:
            if op == "attention":
                return kernels[paged_attention](query, keys, values, self.metadata, layer)
            if op == "rope":
                return kernels[rope_and_kv_write](
                    query, key, value, self.positions, self.cos_sin, self.slot_mapping, keys, values
                )
            if op == "norm":
                return [kernels[add_rms_norm](self.x, self.residual, self.weight, 1e-5) for _ in range(2)]
            if op == "lora":
                return kernels[add_lora](self.x, self.gate_up, self.adapters, self.lora)
            return kernels[activation](self.gate_up, "silu")

        return lambda: [run(*cache) for cache in self.caches]

    def captured(self, op: str) -> Callable[[], object]:
        """The same as a graph."""
        graph = Graph()
        with graph.capture():
            self.calls(op)()
        return lambda: graph.replay(self.tokens, self.rows)


def best_time(call: Callable[[], object], seconds: float) -> float:
    """The least seconds of one call."""
    best = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - started)
    return best


if __name__ == "__main__":
    main()
