"""The tokens that an index chooses for each token, against a definition in float64; and attention to them."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyllm_kernels import AttentionLayer, AttentionMetadata, select
from pyllm_kernels.ops.paged_attention import paged_attention
from pyllm_kernels.ops.token_selection import cells_of, select_tokens
from pyllm_kernels.tensors import Array, numpy_dtype

from pyllm.machine.cpu_features import instructions
from pyllm.machine.processor import kernel_levels

CPU, REFERENCE = select("cpu", "cpu"), select("reference", "cpu")
ROWS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), min_size=1, max_size=4)


def batch_of(rows: list[tuple[int, int]], block_size: int) -> AttentionMetadata:
    """Rows of so many new tokens after so many cached ones; their blocks are in a random order."""
    lengths = [new + cached for new, cached in rows]
    most = -(-max(lengths) // block_size)
    tables = np.random.default_rng(0).permutation(len(rows) * most).astype(np.int32).reshape(len(rows), most)
    starts = np.cumsum([0, *(new for new, _ in rows)], dtype=np.int32)
    slots = np.arange(len(rows), dtype=np.int32)
    sizes = max(new for new, _ in rows), max(lengths), int(starts[-1])
    return AttentionMetadata(tables, slots, starts, np.array(lengths, np.int32), *sizes)


def cache_of(metadata: AttentionMetadata, block_size: int, dtype: str, size: int, beside: int) -> Array:
    """Random vectors of `size` numbers, with others beside them and between blocks."""
    shape = metadata.block_tables.size, 3, block_size, 1, size + beside
    whole: Array = np.random.default_rng(1).standard_normal(shape, np.float32).astype(numpy_dtype(dtype))
    return whole[:, 1]


def positions_of(metadata: AttentionMetadata, row: int, cells: Array, cache: Array) -> list[int]:
    """The positions of a row's cells."""
    apart, block_size = cache.strides[0] // cache.strides[1], cache.shape[1]
    table = metadata.block_tables[row].tolist()
    return [table.index(cell // apart) * block_size + cell % apart for cell in cells.tolist()]


@pytest.mark.parametrize(("heads", "size"), [(1, 8), (4, 16), (33, 40), (64, 128)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_the_largest_scores_are_chosen_in_the_order_of_positions(
    heads: int, size: int, dtype: str, backend: str
) -> None:
    random, metadata = np.random.default_rng(2), batch_of([(1, 30), (7, 0), (5, 25), (1, 1200)], 16)
    query = random.standard_normal((14, heads, size), np.float32).astype(numpy_dtype(dtype))
    weights = random.standard_normal((14, heads), np.float32)
    cache = cache_of(metadata, 16, dtype, size, 0)
    found = (CPU if backend == "cpu" else REFERENCE)[select_tokens](query, weights, cache, metadata, 12)
    starts, lengths = metadata.query_starts.tolist(), metadata.sequence_lengths.tolist()
    for row in range(4):
        for token in range(starts[row], starts[row + 1]):
            length = lengths[row] - (starts[row + 1] - token - 1)
            table = metadata.block_tables[row]
            keys = np.array([cache[table[at // 16], at % 16, 0].astype(np.float64) for at in range(length)])
            scores = weights[token].astype(np.float64) @ np.maximum(query[token].astype(np.float64) @ keys.T, 0)
            count = int(found.lengths[token])
            positions = positions_of(metadata, row, found.cells[token, :count], cache)
            assert count == min(length, 12)
            assert positions == sorted(set(positions))
            left_out = np.delete(scores, positions)
            assert not len(left_out) or scores[positions].min() >= left_out.max() - 1e-4 * np.abs(scores).max()


def test_of_equal_scores_the_first_wins() -> None:
    metadata = batch_of([(2, 40)], 4)
    cache = np.zeros((metadata.block_tables.size, 4, 1, 8), np.float32)
    for kernels in (CPU, REFERENCE):
        found = kernels[select_tokens](np.ones((2, 3, 8), np.float32), np.ones((2, 3), np.float32), cache, metadata, 5)
        assert positions_of(metadata, 0, found.cells[1], cache) == [0, 1, 2, 3, 4]


@given(ROWS, st.integers(1, 30), st.sampled_from([1, 4, 16]), st.integers(1, 5), st.data())
def test_a_token_has_the_same_choice_and_attention_alone(
    rows: list[tuple[int, int]], count: int, block_size: int, heads: int, data: st.DataObject
) -> None:
    """In one chunk with those before it, beside other sequences, and one by one."""
    random, metadata = np.random.default_rng(3), batch_of(rows, block_size)
    index = random.standard_normal((metadata.num_tokens, heads, 8), np.float32)
    weights = random.standard_normal((metadata.num_tokens, heads), np.float32)
    query = random.standard_normal((metadata.num_tokens, 6, 24), np.float32)
    cache, layer = cache_of(metadata, block_size, "float32", 24, 8), AttentionLayer(scale=0.2)
    latents, keys = cache[..., :24], cache[..., 24:]

    def attended(metadata: AttentionMetadata, tokens: slice) -> tuple[Array, Array]:
        chosen = CPU[select_tokens](index[tokens], weights[tokens], keys, metadata, count)
        cells = cells_of(latents)
        return chosen.cells, CPU[paged_attention](query[tokens], cells, cells, chosen.metadata(metadata), layer)

    cells, together = attended(metadata, slice(None))
    row = data.draw(st.integers(0, len(rows) - 1))
    start, end = metadata.query_starts[row : row + 2].tolist()
    token = data.draw(st.integers(start, end - 1))
    length = int(metadata.sequence_lengths[row]) - (end - token - 1)
    one = replace(
        metadata,
        slots=metadata.slots[row : row + 1],
        query_starts=np.array([0, 1], np.int32),
        sequence_lengths=np.array([length], np.int32),
        num_tokens=1,
    )
    own, alone = attended(one, slice(token, token + 1))
    kept = min(length, count)
    assert np.array_equal(own[0, :kept], cells[token, :kept])
    assert np.array_equal(alone[0], together[token])
    if length <= count:
        dense = CPU[paged_attention](query[token : token + 1], latents, latents, one, layer)
        assert np.array_equal(alone, dense)


def test_what_is_no_number_is_chosen_last_and_both_zeros_are_equal() -> None:
    metadata = batch_of([(1, 9)], 4)
    cache = np.zeros((metadata.block_tables.size, 4, 1, 8), np.float32)
    table = metadata.block_tables[0]
    cache[table[0], 0], cache[table[1], 2] = np.nan, 1.0  # positions 0 and 6
    query, weights = np.ones((1, 2, 8), np.float32), np.array([[1.0, 1.0]], np.float32)
    for kernels, sign in ((CPU, 1), (CPU, -1), (REFERENCE, 1), (REFERENCE, -1)):
        found = kernels[select_tokens](query, sign * weights, cache, metadata, 8)
        left_out = {0, 9} if sign > 0 else {0, 6}
        assert positions_of(metadata, 0, found.cells[0], cache) == sorted(set(range(10)) - left_out)


def test_rows_by_token_are_as_many_as_tokens() -> None:
    metadata, cache = batch_of([(2, 9)], 4), np.zeros((6, 4, 1, 8), np.float32)
    query, weights = np.ones((2, 2, 8), np.float32), np.ones((2, 2), np.float32)
    chosen = CPU[select_tokens](query, weights, cache, metadata, 3).metadata(metadata)
    cells, layer = cells_of(cache), AttentionLayer(scale=1.0)
    with pytest.raises(ValueError, match="2 rows are given for 3 tokens"):
        CPU[paged_attention](np.ones((3, 2, 8), np.float32), cells, cells, chosen, layer)
    with pytest.raises(ValueError, match="only attention takes such a batch"):
        CPU[select_tokens](query, weights, cells, chosen, 3)


def test_what_does_not_fit_is_refused() -> None:
    metadata = batch_of([(2, 3)], 4)
    cache = np.zeros((metadata.block_tables.size, 4, 1, 8), np.float32)
    query, weights = np.zeros((2, 3, 8), np.float32), np.zeros((2, 3), np.float32)
    for wrong in ((query[..., :6], weights, cache, 2), (query, weights[:, :2], cache, 2), (query, weights, cache, 0)):
        with pytest.raises(ValueError, match=r"shape|at least 1"):
            CPU[select_tokens](*wrong[:3], metadata, wrong[3])
    metadata.block_tables[0, 0] = 99
    with pytest.raises(IndexError, match="block tables"):
        CPU[select_tokens](query, weights, cache, metadata, 2)


CHOICES = """
import hashlib, sys
import numpy as np
from pyllm_kernels import select, use_instruction_set
from pyllm_kernels.ops.token_selection import select_tokens
from tests.kernels.test_token_selection import batch_of, cache_of

use_instruction_set(sys.argv[1])
random, metadata = np.random.default_rng(0), batch_of([(3, 700), (2, 90)], 16)
query = random.standard_normal((5, 33, 40), np.float32)
weights = random.standard_normal((5, 33), np.float32)
found = select("cpu", "cpu")[select_tokens](query, weights, cache_of(metadata, 16, "float32", 40, 0), metadata, 50)
print(hashlib.sha256(found.cells).hexdigest())
"""


def test_each_level_of_instructions_makes_the_same_choice() -> None:
    commands = [[sys.executable, "-c", CHOICES, level] for level in kernel_levels(instructions())]
    assert len({subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout for command in commands}) == 1
