"""Graphs of the cpu backend: a replay is the same as the calls, for any part of what was captured."""

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from pyllm_kernels import (
    AttentionLayer,
    AttentionMetadata,
    CaptureError,
    Graph,
    KVScales,
    MatrixRows,
    OpTimes,
    PackedLinear,
    QKNorm,
    _cpu,
    select,
)
from pyllm_kernels.ops.activation import activation
from pyllm_kernels.ops.elementwise import add, add_bias, scale_and_cap
from pyllm_kernels.ops.norm import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from pyllm_kernels.ops.packed_linear import pack_linear, pack_rows, packed_linear, packed_rows
from pyllm_kernels.ops.paged_attention import paged_attention
from pyllm_kernels.ops.rope_and_kv_write import rope_and_kv_write
from torch import Tensor

KERNELS = select("cpu", "cpu")
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCABULARY, BLOCK_SIZE, BLOCKS = 64, 4, 2, 16, 3, 50, 4, 40
MAX_TOKENS, MAX_ROWS, MAX_BLOCKS = 24, 5, 8


class Model:
    """A decoder's layers on random weights, with inputs at fixed addresses."""

    def __init__(self, dtype: torch.dtype, pack: Callable[[Tensor], PackedLinear] = KERNELS[pack_linear]) -> None:
        def linear(out_features: int, in_features: int) -> PackedLinear:
            return pack((torch.randn(out_features, in_features) / in_features**0.5).to(dtype))

        qkv = (HEADS + 2 * KV_HEADS) * HEAD_DIM
        self.embedding = linear(VOCABULARY, HIDDEN)
        self.layers = [
            {
                "qkv": linear(qkv, HIDDEN),
                "output": linear(HIDDEN, HEADS * HEAD_DIM),
                "gate_up": linear(4 * HIDDEN, HIDDEN),
                "down": linear(HIDDEN, 2 * HIDDEN),
                "norm": torch.rand(HIDDEN).to(dtype),
            }
            for _ in range(LAYERS)
        ]
        self.cos_sin = torch.randn(MAX_BLOCKS * BLOCK_SIZE, HEAD_DIM)
        self.caches = torch.zeros(LAYERS, 2, BLOCKS, BLOCK_SIZE, KV_HEADS, HEAD_DIM, dtype=dtype)
        self.tokens, self.positions, self.slot_mapping = torch.zeros(3, MAX_TOKENS, dtype=torch.int32)
        self.metadata = AttentionMetadata(
            block_tables=torch.randperm(BLOCKS).view(MAX_ROWS, MAX_BLOCKS).to(torch.int32),
            slots=torch.zeros(MAX_ROWS, dtype=torch.int32),
            query_starts=torch.zeros(MAX_ROWS + 1, dtype=torch.int32),
            sequence_lengths=torch.zeros(MAX_ROWS, dtype=torch.int32),
            max_query_length=MAX_TOKENS,
            max_sequence_length=MAX_BLOCKS * BLOCK_SIZE,
            num_tokens=MAX_TOKENS,
        )

    def fill(self, rows: list[tuple[int, int, int]]) -> tuple[int, int]:
        """Rows of (slot, context, queries); gives the numbers of tokens and of rows."""
        at = 0
        for row, (slot, context, queries) in enumerate(rows):
            tokens = slice(at, at + queries)
            positions = torch.arange(context, context + queries)
            self.tokens[tokens] = torch.randint(VOCABULARY, (queries,), dtype=torch.int32)
            self.positions[tokens] = positions
            blocks = self.metadata.block_tables[slot, positions // BLOCK_SIZE]
            self.slot_mapping[tokens] = blocks * BLOCK_SIZE + positions % BLOCK_SIZE
            self.metadata.slots[row], self.metadata.sequence_lengths[row] = slot, context + queries
            at += queries
            self.metadata.query_starts[row + 1] = at
        return at, len(rows)

    def first(self, tokens: int, rows: int) -> AttentionMetadata:
        return replace(
            self.metadata,
            slots=self.metadata.slots[:rows],
            query_starts=self.metadata.query_starts[: rows + 1],
            sequence_lengths=self.metadata.sequence_lengths[:rows],
            num_tokens=tokens,
        )

    def __call__(self, tokens: int, rows: int) -> Tensor:
        metadata = self.first(tokens, rows)
        x, residual = KERNELS[packed_rows](self.embedding, self.tokens[:tokens]), None
        for layer, (keys, values) in zip(self.layers, self.caches, strict=True):
            x, residual = self.normalise(x, residual, layer["norm"])
            qkv = KERNELS[packed_linear](x, layer["qkv"]).view(tokens, -1, HEAD_DIM)
            query, key, value = qkv.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
            positions, slot_mapping = self.positions[:tokens], self.slot_mapping[:tokens]
            KERNELS[rope_and_kv_write](query, key, value, positions, self.cos_sin, slot_mapping, keys, values)
            x = KERNELS[paged_attention](query, keys, values, metadata, AttentionLayer(HEAD_DIM**-0.5)).flatten(1)
            x, residual = self.normalise(KERNELS[packed_linear](x, layer["output"]), residual, layer["norm"])
            x = KERNELS[packed_linear](
                KERNELS[activation](KERNELS[packed_linear](x, layer["gate_up"]), "silu"), layer["down"]
            )
        return self.normalise(x, residual, self.layers[0]["norm"])[0]

    def normalise(self, x: Tensor, residual: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        if residual is None:
            return KERNELS[rms_norm](x, weight, 1e-5), x
        return KERNELS[add_rms_norm](x, residual, weight, 1e-5)


def pack_int8(weight: Tensor) -> PackedLinear:
    return KERNELS[pack_rows]([MatrixRows.of(weight)], "int8", weight.dtype)


@pytest.mark.parametrize("pack", [KERNELS[pack_linear], pack_int8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_replay_is_the_calls_for_any_part_of_the_batch(
    dtype: torch.dtype, pack: Callable[[Tensor], PackedLinear]
) -> None:
    model, graph = Model(dtype, pack), Graph()
    with graph.capture():
        hidden = model(MAX_TOKENS, MAX_ROWS)
    assert graph.num_ops == 1 + LAYERS * 9 + 1
    assert not model.caches.any(), "a capture computes nothing"
    # Embedding, residual stream in and out, projections and what they are made into: not as many as there are layers.
    assert graph.num_bytes <= 10 * MAX_TOKENS * 4 * HIDDEN * dtype.itemsize
    gc.collect()
    for rows in (
        [(1, 0, 7), (0, 0, 9), (4, 0, 1)],
        [(1, 7, 1), (0, 9, 1), (4, 1, 1)],
        [(4, 2, 6), (2, 0, 15), (1, 8, 1), (0, 10, 1), (3, 0, 1)],
        [(0, 11, 1)],
    ):
        extent = model.fill(rows)
        before = model.caches.clone()
        graph.replay(*extent)
        caches = model.caches.clone()
        model.caches.copy_(before)
        assert torch.equal(hidden[: extent[0]], model(*extent))
        assert torch.equal(caches, model.caches)


def test_timed_replays_compute_the_same_and_every_op_is_counted() -> None:
    model, graph, times = Model(torch.bfloat16, pack_int8), Graph(), OpTimes(30)
    with graph.capture():
        hidden = model(MAX_TOKENS, MAX_ROWS)
    extent = model.fill([(1, 0, 7), (0, 0, 9)])
    graph.replay(*extent)
    plain = hidden[: extent[0]].clone()
    times.begin()
    graph.replay(*extent)
    assert torch.equal(hidden[: extent[0]], plain)
    alone = KERNELS[rms_norm](plain, torch.ones(HIDDEN, dtype=plain.dtype), 1e-5)
    times.end()
    graph.replay(*extent)
    assert torch.equal(KERNELS[rms_norm](plain, torch.ones(HIDDEN, dtype=plain.dtype), 1e-5), alone)
    totals = {name: runs for name, runs, _ in times.totals()}
    # A joined name is of two ops, and there is one more norm, which no graph held.
    assert sum(runs * (1 + name.count(" + ")) for name, runs in totals.items()) == graph.num_ops + 1
    assert totals["norm + packed_linear"] == 2 * LAYERS
    assert totals["paged_attention"] == totals["rope_and_kv_write"] == LAYERS
    runs = times.runs()
    assert len(runs) == min(30, sum(totals.values()))
    assert all(start + took <= following for (_, start, took), (_, following, _) in pairwise(runs))


def test_ops_are_timed_by_one_at_a_time_and_on_one_thread() -> None:
    times, x = OpTimes(10), torch.randn(2, 8)
    with pytest.raises(RuntimeError, match="this thread's ops are not timed here"):
        times.end()
    times.begin()
    with pytest.raises(RuntimeError, match="this thread's ops are being timed"):
        OpTimes(1).begin()
    with pytest.raises(RuntimeError, match="this thread's ops are being timed"), Graph().capture():
        pass
    thread = threading.Thread(target=KERNELS[activation], args=(x, "silu"))
    thread.start()
    thread.join()
    assert times.totals() == []
    KERNELS[activation](x, "silu")
    times.end()
    KERNELS[activation](x, "silu")
    assert [(name, runs) for name, runs, _ in times.totals()] == [("activation", 1)]


def test_an_output_that_is_held_stays_and_another_is_written_over() -> None:
    graph, x, weight = Graph(), torch.randn(2, 8), torch.ones(8)
    with graph.capture():
        held = KERNELS[rms_norm](x, weight, 1e-5).view(4, 4)[1:]  # The view holds what it lies in.
        first = KERNELS[activation](x, "silu")
        address = first.data_ptr()
        del first
        second = KERNELS[activation](x, "silu")
        assert second.data_ptr() == address
    graph.replay(2, 0)
    assert torch.equal(held, KERNELS[rms_norm](x, weight, 1e-5).view(4, 4)[1:])
    x *= 2
    graph.replay(1, 0)
    assert torch.equal(second[0], KERNELS[activation](x, "silu")[0])
    assert torch.equal(second[1], KERNELS[activation](x / 2, "silu")[1])


def test_a_graph_keeps_its_inputs_alive_and_an_output_the_memory() -> None:
    graph, x = Graph(), torch.full((3, 2), 2.0)
    with graph.capture():
        out = KERNELS[activation](x, "silu")
    del x
    gc.collect()
    graph.replay(3, 0)
    expected = KERNELS[activation](torch.full((3, 2), 2.0), "silu")
    del graph
    gc.collect()
    assert torch.equal(out, expected)


def test_more_than_was_captured_is_refused() -> None:
    model, graph = Model(torch.float32), Graph()
    with graph.capture():
        model(MAX_TOKENS, MAX_ROWS)
    with pytest.raises(ValueError, match="25 tokens in 1 rows: the graph was captured for up to 24 tokens in 5 rows"):
        graph.replay(MAX_TOKENS + 1, 1)
    with pytest.raises(ValueError, match="24 tokens in 6 rows"):
        graph.replay(MAX_TOKENS, MAX_ROWS + 1)


def test_indices_are_checked_at_every_replay() -> None:
    model, graph = Model(torch.float32), Graph()
    with graph.capture():
        model(MAX_TOKENS, MAX_ROWS)
    for tensor, number, message in (
        (model.tokens, VOCABULARY, "row 50 of a matrix of 50 rows"),
        (model.positions, -1, "position 0 is -1: it must be from 0 to 31"),
        (model.slot_mapping, BLOCKS * BLOCK_SIZE, "entry of the slot mapping 0 is 160: it must be from"),
        (model.metadata.slots, 5, "slot of row 0 is 5: it must be from 0 to 4"),
        (model.metadata.sequence_lengths, 33, "length of the sequence of row 0 is 33: it must be from 2 to 32"),
        (model.metadata.sequence_lengths, 1, "length of the sequence of row 0 is 1: it must be from 2 to 32"),
        (model.metadata.query_starts, 3, "query start 0 is 3: it must be from 0 to 2"),
    ):
        extent = model.fill([(0, 0, 2)])
        before = int(tensor[0])
        tensor[0] = number
        with pytest.raises(IndexError, match=message):
            graph.replay(*extent)
        tensor[0] = before
        graph.replay(*extent)
    model.metadata.block_tables[0, 0] = BLOCKS
    with pytest.raises(IndexError, match="used entry of a row of the block tables 0 is 40: it must be from 0 to 39"):
        graph.replay(*extent)


def test_what_a_graph_cannot_take_is_refused() -> None:
    graph, x = Graph(), torch.randn(2, 8)
    half, heads, cache, ints = x.half(), x.view(2, 1, 8), torch.zeros(1, 4, 1, 8), torch.zeros(2, dtype=torch.int32)
    with graph.capture():
        with pytest.raises(CaptureError, match="activation has no kernel for these dtypes"):
            KERNELS[activation](half, "silu")
        tensors = heads, heads, heads, ints, x, ints, cache, cache
        with pytest.raises(CaptureError, match="rope_and_kv_write has no kernel for these dtypes"):
            KERNELS[rope_and_kv_write](*tensors, None, KVScales(key=2.0))
        with pytest.raises(RuntimeError, match="this thread is not capturing this graph"):
            _cpu.Graph().end_capture()
        with pytest.raises(MemoryError, match="no memory for an output of"):
            _cpu.Graph().lend(2**62)
        KERNELS[activation](x, "silu")
        with pytest.raises(ValueError, match="an op of 1 tokens in a graph of 2"):
            KERNELS[activation](x[:1], "silu")
        with pytest.raises(RuntimeError, match="this thread is capturing a graph already"), Graph().capture():
            pass
    assert graph.num_ops == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_ops_of_every_family_are_recorded(dtype: torch.dtype) -> None:
    x, residual, weight = torch.randn(6, 16).to(dtype), torch.randn(6, 16).to(dtype), torch.rand(16).to(dtype)
    norm, query_scales = QKNorm(torch.rand(8), torch.rand(8), 1e-5), torch.rand(9) + 0.5
    positions, cells = torch.arange(6, dtype=torch.int32), torch.arange(6, dtype=torch.int32)
    caches, cos_sin = torch.zeros(2, 2, 4, 1, 8, dtype=dtype), torch.randn(9, 4)

    def step(tokens: int) -> list[Tensor]:
        total = KERNELS[add](x[:tokens], residual[:tokens], 0.5)
        normed, stream = KERNELS[add_layer_norm](total, residual[:tokens], weight, 1e-5, 0.22)
        wide = KERNELS[add_rms_norm](KERNELS[layer_norm](normed, weight, 1e-5), stream, weight, 1e-5, 0.22)[0]
        query = KERNELS[add_bias](KERNELS[activation](wide, "gelu", False), weight).view(tokens, 2, 8)
        key, value = query[:, :1], stream.view(tokens, 2, 8)[:, 1:]
        at = positions[:tokens], cos_sin, cells[:tokens]
        KERNELS[rope_and_kv_write](query[:, 1:], key, value, *at, *caches, norm, KVScales(), query_scales)
        return [KERNELS[scale_and_cap](KERNELS[activation](query.flatten(1), "gelu_tanh"), 3.0, 2.0), stream]

    graph = Graph()
    with graph.capture():
        captured = step(6)
    assert graph.num_ops == 9
    for tokens in (6, 1, 4):
        x.copy_(torch.randn(6, 16))
        caches.zero_()
        graph.replay(tokens, 0)
        replayed, written = [output[:tokens].clone() for output in captured], caches.clone()
        caches.zero_()
        assert all(map(torch.equal, replayed, step(tokens)))
        assert torch.equal(written, caches)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x + 1,
        lambda x: x.mul_(2),
        lambda x: x.bfloat16(),
        lambda x: x.T.contiguous(),
        lambda x: x.clone(),
        lambda x: x[torch.tensor([0])],
        lambda x: torch.zeros(2),
        lambda x: torch.nn.functional.linear(x, x),
    ],
)
def test_torch_computes_nothing_in_a_capture(compute: Callable[[Tensor], Tensor]) -> None:
    graph, x = Graph(), torch.randn(2, 8)
    before = x.clone()
    with graph.capture():
        with pytest.raises(CaptureError, match="would compute once, at the capture: only Rust's ops are captured"):
            compute(x)
        assert x[:, 2:4].view(2, 2, 1).transpose(0, 1).shape == (2, 2, 1), "views are free"
    assert graph.num_ops == 0
    assert torch.equal(x, before)
    compute(x)  # Afterwards torch computes again.


def test_other_threads_go_on_computing() -> None:
    x = torch.randn(2, 8)
    expected, elsewhere = KERNELS[activation](x, "silu"), []
    with Graph().capture():
        thread = threading.Thread(target=lambda: elsewhere.append(KERNELS[activation](x, "silu")))
        thread.start()
        thread.join()
    assert torch.equal(elsewhere[0], expected)


def test_a_capture_does_not_import_the_compiler_of_torch() -> None:
    code = """
import sys
import torch
from pyllm_kernels import Graph, select
from pyllm_kernels.ops.activation import activation
x = torch.ones(2, 8)
graph = Graph()
with graph.capture():
    select("cpu", "cpu")[activation](x, "silu").view(8)
assert graph.num_ops == 1
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
