"""Graphs of the cpu backend: a replay is the same as the calls, for any part of what was captured."""

import gc
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
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
from pyllm_kernels.tensors import Array, address, dtype_name, numpy_dtype, split

KERNELS = select("cpu", "cpu")
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCABULARY, BLOCK_SIZE, BLOCKS = 64, 4, 2, 16, 3, 50, 4, 40
MAX_TOKENS, MAX_ROWS, MAX_BLOCKS = 24, 5, 8
DTYPES = ["float32", "bfloat16", "float16"]
RNG = np.random.default_rng(0)


def normal(*shape: int, dtype: str = "float32") -> Array:
    return RNG.standard_normal(shape).astype(numpy_dtype(dtype))


def uniform(*shape: int, dtype: str = "float32") -> Array:
    return RNG.random(shape).astype(numpy_dtype(dtype))


def same(ours: Array, theirs: Array) -> bool:
    """Whether two arrays have the same bits."""
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()


class Model:
    """A decoder's layers on random weights, with inputs at fixed addresses."""

    def __init__(self, dtype: str, pack: Callable[[Array], PackedLinear] = KERNELS[pack_linear]) -> None:
        def linear(out_features: int, in_features: int) -> PackedLinear:
            return pack((normal(out_features, in_features) / in_features**0.5).astype(numpy_dtype(dtype)))

        qkv = (HEADS + 2 * KV_HEADS) * HEAD_DIM
        self.embedding = linear(VOCABULARY, HIDDEN)
        self.layers = [
            {
                "qkv": linear(qkv, HIDDEN),
                "output": linear(HIDDEN, HEADS * HEAD_DIM),
                "gate_up": linear(4 * HIDDEN, HIDDEN),
                "down": linear(HIDDEN, 2 * HIDDEN),
                "norm": uniform(HIDDEN, dtype=dtype),
            }
            for _ in range(LAYERS)
        ]
        self.cos_sin = normal(MAX_BLOCKS * BLOCK_SIZE, HEAD_DIM)
        self.caches = np.zeros((LAYERS, 2, BLOCKS, BLOCK_SIZE, KV_HEADS, HEAD_DIM), numpy_dtype(dtype))
        self.tokens, self.positions, self.slot_mapping = np.zeros((3, MAX_TOKENS), np.int32)
        self.metadata = AttentionMetadata(
            block_tables=RNG.permutation(BLOCKS).reshape(MAX_ROWS, MAX_BLOCKS).astype(np.int32),
            slots=np.zeros(MAX_ROWS, np.int32),
            query_starts=np.zeros(MAX_ROWS + 1, np.int32),
            sequence_lengths=np.zeros(MAX_ROWS, np.int32),
            max_query_length=MAX_TOKENS,
            max_sequence_length=MAX_BLOCKS * BLOCK_SIZE,
            num_tokens=MAX_TOKENS,
        )

    def fill(self, rows: list[tuple[int, int, int]]) -> tuple[int, int]:
        """Rows of (slot, context, queries); gives the numbers of tokens and of rows."""
        at = 0
        for row, (slot, context, queries) in enumerate(rows):
            tokens = slice(at, at + queries)
            positions = np.arange(context, context + queries)
            self.tokens[tokens] = RNG.integers(VOCABULARY, size=queries)
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

    def __call__(self, tokens: int, rows: int) -> Array:
        metadata = self.first(tokens, rows)
        x, residual = KERNELS[packed_rows](self.embedding, self.tokens[:tokens]), None
        for layer, (keys, values) in zip(self.layers, self.caches, strict=True):
            x, residual = self.normalise(x, residual, layer["norm"])
            qkv = KERNELS[packed_linear](x, layer["qkv"]).reshape(tokens, -1, HEAD_DIM)
            query, key, value = split(qkv, [HEADS, KV_HEADS, KV_HEADS])
            positions, slot_mapping = self.positions[:tokens], self.slot_mapping[:tokens]
            KERNELS[rope_and_kv_write](query, key, value, positions, self.cos_sin, slot_mapping, keys, values)
            x = KERNELS[paged_attention](query, keys, values, metadata, AttentionLayer(HEAD_DIM**-0.5))
            x = x.reshape(tokens, HEADS * HEAD_DIM)
            x, residual = self.normalise(KERNELS[packed_linear](x, layer["output"]), residual, layer["norm"])
            x = KERNELS[packed_linear](
                KERNELS[activation](KERNELS[packed_linear](x, layer["gate_up"]), "silu"), layer["down"]
            )
        return self.normalise(x, residual, self.layers[0]["norm"])[0]

    def normalise(self, x: Array, residual: Array | None, weight: Array) -> tuple[Array, Array]:
        if residual is None:
            return KERNELS[rms_norm](x, weight, 1e-5), x
        return KERNELS[add_rms_norm](x, residual, weight, 1e-5)


def pack_int8(weight: Array) -> PackedLinear:
    return KERNELS[pack_rows]([MatrixRows.of(weight)], "int8", dtype_name(weight.dtype))


@pytest.mark.parametrize("pack", [KERNELS[pack_linear], pack_int8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_replay_is_the_calls_for_any_part_of_the_batch(dtype: str, pack: Callable[[Array], PackedLinear]) -> None:
    model, graph = Model(dtype, pack), Graph()
    with graph.capture():
        hidden = model(MAX_TOKENS, MAX_ROWS)
    assert graph.num_ops == 1 + LAYERS * 9 + 1
    assert not model.caches.any(), "a capture computes nothing"
    # Embedding, residual stream in and out, projections and what they are made into: not as many as there are layers.
    assert graph.num_bytes <= 10 * MAX_TOKENS * 4 * HIDDEN * numpy_dtype(dtype).itemsize
    gc.collect()
    for rows in (
        [(1, 0, 7), (0, 0, 9), (4, 0, 1)],
        [(1, 7, 1), (0, 9, 1), (4, 1, 1)],
        [(4, 2, 6), (2, 0, 15), (1, 8, 1), (0, 10, 1), (3, 0, 1)],
        [(0, 11, 1)],
    ):
        extent = model.fill(rows)
        before = model.caches.copy()
        graph.replay(*extent)
        caches = model.caches.copy()
        model.caches[...] = before
        assert same(hidden[: extent[0]], model(*extent))
        assert same(caches, model.caches)


def test_timed_replays_compute_the_same_and_every_op_is_counted() -> None:
    model, graph, times = Model("bfloat16", pack_int8), Graph(), OpTimes(30)
    with graph.capture():
        hidden = model(MAX_TOKENS, MAX_ROWS)
    extent = model.fill([(1, 0, 7), (0, 0, 9)])
    graph.replay(*extent)
    plain, ones = hidden[: extent[0]].copy(), np.ones(HIDDEN, hidden.dtype)
    times.begin()
    graph.replay(*extent)
    assert same(hidden[: extent[0]], plain)
    alone = KERNELS[rms_norm](plain, ones, 1e-5)
    times.end()
    graph.replay(*extent)
    assert same(KERNELS[rms_norm](plain, ones, 1e-5), alone)
    totals = {name: runs for name, runs, _ in times.totals()}
    # A joined name is of two ops, and there is one more norm, which no graph held.
    assert sum(runs * (1 + name.count(" + ")) for name, runs in totals.items()) == graph.num_ops + 1
    assert totals["norm + packed_linear"] == 2 * LAYERS
    assert totals["paged_attention"] == totals["rope_and_kv_write"] == LAYERS
    runs = times.runs()
    assert len(runs) == min(30, sum(totals.values()))
    assert all(start + took <= following for (_, start, took), (_, following, _) in pairwise(runs))


def test_ops_are_timed_by_one_at_a_time_and_on_one_thread() -> None:
    times, x = OpTimes(10), normal(2, 8)
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
    graph, x, weight = Graph(), normal(2, 8), np.ones(8, np.float32)
    with graph.capture():
        held = KERNELS[rms_norm](x, weight, 1e-5).reshape(4, 4)[1:]  # The view holds what it lies in.
        first = KERNELS[activation](x, "silu")
        memory = address(first)
        del first
        second = KERNELS[activation](x, "silu")
        assert address(second) == memory
    graph.replay(2, 0)
    assert same(held, KERNELS[rms_norm](x, weight, 1e-5).reshape(4, 4)[1:])
    x *= 2
    graph.replay(1, 0)
    assert same(second[0], KERNELS[activation](x, "silu")[0])
    assert same(second[1], KERNELS[activation](x / 2, "silu")[1])


def test_a_graph_keeps_its_inputs_alive_and_an_output_the_memory() -> None:
    graph, x = Graph(), np.full((3, 2), 2, np.float32)
    with graph.capture():
        out = KERNELS[activation](x, "silu")
    del x
    gc.collect()
    graph.replay(3, 0)
    expected = KERNELS[activation](np.full((3, 2), 2, np.float32), "silu")
    del graph
    gc.collect()
    assert same(out, expected)


def test_more_than_was_captured_is_refused() -> None:
    model, graph = Model("float32"), Graph()
    with graph.capture():
        model(MAX_TOKENS, MAX_ROWS)
    with pytest.raises(ValueError, match="25 tokens in 1 rows: the graph was captured for up to 24 tokens in 5 rows"):
        graph.replay(MAX_TOKENS + 1, 1)
    with pytest.raises(ValueError, match="24 tokens in 6 rows"):
        graph.replay(MAX_TOKENS, MAX_ROWS + 1)


def test_indices_are_checked_at_every_replay() -> None:
    model, graph = Model("float32"), Graph()
    with graph.capture():
        model(MAX_TOKENS, MAX_ROWS)
    for array, number, message in (
        (model.tokens, VOCABULARY, "row 50 of a matrix of 50 rows"),
        (model.positions, -1, "position 0 is -1: it must be from 0 to 31"),
        (model.slot_mapping, BLOCKS * BLOCK_SIZE, "entry of the slot mapping 0 is 160: it must be from"),
        (model.metadata.slots, 5, "slot of row 0 is 5: it must be from 0 to 4"),
        (model.metadata.sequence_lengths, 33, "length of the sequence of row 0 is 33: it must be from 2 to 32"),
        (model.metadata.sequence_lengths, 1, "length of the sequence of row 0 is 1: it must be from 2 to 32"),
        (model.metadata.query_starts, 3, "query start 0 is 3: it must be from 0 to 2"),
    ):
        extent = model.fill([(0, 0, 2)])
        before = int(array[0])
        array[0] = number
        with pytest.raises(IndexError, match=message):
            graph.replay(*extent)
        array[0] = before
        graph.replay(*extent)
    model.metadata.block_tables[0, 0] = BLOCKS
    with pytest.raises(IndexError, match="used entry of a row of the block tables 0 is 40: it must be from 0 to 39"):
        graph.replay(*extent)


def test_what_a_graph_cannot_take_is_refused() -> None:
    graph, x = Graph(), normal(2, 8)
    packed = select("reference", "cpu")[pack_linear](normal(3, 8))
    with graph.capture():
        with pytest.raises(CaptureError, match="packed_linear has no kernel in Rust for these arguments"):
            KERNELS[packed_linear](x, packed)
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


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_ops_of_every_family_are_recorded(dtype: str) -> None:
    x, residual, weight = normal(6, 16, dtype=dtype), normal(6, 16, dtype=dtype), uniform(16, dtype=dtype)
    norm, query_scales = QKNorm(uniform(8), uniform(8), 1e-5), uniform(9) + np.float32(0.5)
    positions, cells = np.arange(6, dtype=np.int32), np.arange(6, dtype=np.int32)
    caches, cos_sin = np.zeros((2, 2, 4, 1, 8), numpy_dtype(dtype)), normal(9, 4)

    def step(tokens: int) -> list[Array]:
        total = KERNELS[add](x[:tokens], residual[:tokens], 0.5)
        normed, stream = KERNELS[add_layer_norm](total, residual[:tokens], weight, 1e-5, 0.22)
        wide = KERNELS[add_rms_norm](KERNELS[layer_norm](normed, weight, 1e-5), stream, weight, 1e-5, 0.22)[0]
        query = KERNELS[add_bias](KERNELS[activation](wide, "gelu", False), weight).reshape(tokens, 2, 8)
        key, value = query[:, :1], stream.reshape(tokens, 2, 8)[:, 1:]
        at = positions[:tokens], cos_sin, cells[:tokens]
        KERNELS[rope_and_kv_write](query[:, 1:], key, value, *at, *caches, norm, KVScales(), query_scales)
        wide = KERNELS[activation](query.reshape(tokens, 16), "gelu_tanh")
        return [KERNELS[scale_and_cap](wide, 3.0, 2.0), stream]

    graph = Graph()
    with graph.capture():
        captured = step(6)
    assert graph.num_ops == 9
    for tokens in (6, 1, 4):
        x[...] = normal(6, 16)
        caches[...] = 0
        graph.replay(tokens, 0)
        replayed, written = [output[:tokens].copy() for output in captured], caches.copy()
        caches[...] = 0
        assert all(map(same, replayed, step(tokens)))
        assert same(written, caches)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x + 1,
        lambda x: np.add(1, x),
        lambda x: np.multiply(x, 2, out=x),
        lambda x: x.astype(np.float16),
        lambda x: x.T.reshape(16),
        lambda x: x.copy(),
        lambda x: x[np.array([0])],
        lambda x: x[x > 0],
        lambda x: np.concatenate((x, x)),
        lambda x: x.sum(-1),
        lambda x: x @ x.T,
    ],
)
def test_numpy_computes_nothing_in_a_capture(compute: Callable[[Array], Array]) -> None:
    graph, x = Graph(), normal(2, 8)
    with graph.capture():
        out = KERNELS[activation](x, "silu", False)
        with pytest.raises(CaptureError, match="would compute once, at the capture: only Rust's ops are captured"):
            compute(out)
        assert out[:, 2:4].reshape(2, 2, 1).transpose(1, 0, 2).shape == (2, 2, 1), "views are free"
    assert graph.num_ops == 1
    graph.replay(2, 0)
    expected = KERNELS[activation](x, "silu", False)
    assert same(out, expected)
    assert same(np.asarray(compute(out)), compute(expected))  # Afterwards numpy computes again.


def test_other_threads_go_on_computing() -> None:
    x = normal(2, 8)
    expected, elsewhere = KERNELS[activation](x, "silu"), []
    with Graph().capture():
        thread = threading.Thread(target=lambda: elsewhere.append(KERNELS[activation](x, "silu")))
        thread.start()
        thread.join()
    assert same(elsewhere[0], expected)
