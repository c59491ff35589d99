"""Checks that every op with states passes, on CPUs and on GPUs, given the op with inputs for a number of tokens."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyllm_kernels
import pytest
import torch
from pyllm_kernels import Graph, Kernels, StateRows, select
from pyllm_kernels.tensors import Array, numpy_dtype
from pyllm_kernels.torch_bridge import as_array, as_tensor

from tests.wrapped_kernels import WrappedKernels

CPU, REFERENCE = select("cpu", "cpu"), select("reference", "cpu")
# A sum's order; half a unit of bfloat16 or float16.
TOLERANCE = {"float32": 2e-5, "bfloat16": 8e-3, "float16": 1e-3}
DTYPES = list(TOLERANCE)
NUM_STATES = 6
TOKENS = 23
CUTS = [[23], [1, 22], [5, 6, 12], [22, 1], [2, 0, 2, 19], [1] * 23]


@dataclass(frozen=True)
class Case:
    """An op on `inputs`, each of `TOKENS` tokens, with states of a shape."""

    run: Callable[[Kernels, Sequence[Array], StateRows, Array], Array]
    inputs: list[Array]
    state_shape: tuple[int, ...]

    def states(self) -> Array:
        return normal(NUM_STATES, *self.state_shape, seed=1)

    def on(self, kernels: Kernels, tokens: slice, rows: StateRows, states: Array) -> Array:
        return self.run(kernels, [array[tokens] for array in self.inputs], rows, states)


def normal(*shape: int, dtype: str = "float32", seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(numpy_dtype(dtype))


def columns(*shape: int, dtype: str = "float32", seed: int = 0) -> Array:
    """Columns out of a wider matrix, as an op gets a part of a projection."""
    tokens, width = shape
    return normal(tokens, width + 7, dtype=dtype, seed=seed)[:, 3 : 3 + width]


def state_rows(lengths: Sequence[int], sources: Sequence[int], destinations: Sequence[int]) -> StateRows:
    starts = np.cumsum([0, *lengths])
    return StateRows(*(np.array(numbers, np.int32) for numbers in (starts, sources, destinations)))


def as_torch(array: Array) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float32))


def close(ours: Array, theirs: Array | torch.Tensor, dtype: str = "float32") -> None:
    tolerance = TOLERANCE[dtype]
    expected = np.asarray(theirs, np.float32)
    np.testing.assert_allclose(ours.astype(np.float32), expected, atol=tolerance, rtol=tolerance)


def same(ours: Array, theirs: Array) -> bool:
    """Whether two arrays have the same bits."""
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = pyllm_kernels.num_threads()
    pyllm_kernels.set_num_threads(count)
    try:
        yield
    finally:
        pyllm_kernels.set_num_threads(before)


def of_arrays(kernels: Kernels, device: torch.device) -> Kernels:
    """Kernels for tensors of a device as kernels for arrays."""

    def wrapped(_: str, version: Callable[..., Any]) -> Callable[..., Array]:
        def run(*args: Any) -> Array:
            tensors = [(arg, as_tensor(arg).to(device)) for arg in args if isinstance(arg, np.ndarray)]
            of_array = {id(array): tensor for array, tensor in tensors}
            out = version(
                *(_on(device, arg) if isinstance(arg, StateRows) else of_array.get(id(arg), arg) for arg in args)
            )
            for array, tensor in tensors:
                if device.type != "cpu":
                    array[...] = as_array(tensor)
            return as_array(out)

        return run

    return WrappedKernels(kernels, wrapped)


def _on(device: torch.device, rows: StateRows) -> StateRows:
    tensors = (as_tensor(array).to(device) for array in (rows.query_starts, rows.sources, rows.destinations))
    return StateRows(*tensors)


def computes_the_reference(case: Case, dtype: str, kernels: Kernels = CPU) -> None:
    # The second row goes on from the first, the third ends where it began, the fourth leaves nothing and is empty.
    rows = state_rows([7, 1, 3, 0, 1, 11], [-1, 2, 4, 0, -1, 5], [2, 3, 4, 1, -1, -1])
    ours, theirs = case.states(), case.states()
    out = case.on(kernels, slice(None), rows, ours)
    expected = case.on(REFERENCE, slice(None), rows, theirs)
    assert out.dtype == case.inputs[0].dtype
    close(out, expected, dtype)
    close(ours, theirs)
    untouched = [0, 5]
    assert same(ours[untouched], case.states()[untouched]), "sources are kept"
    assert same(ours[1], ours[0]), "no tokens change no state"


def is_the_same_however_cut(case: Case) -> None:
    """The same bits in one row or in many, in one step or in several, beside other rows, and on any threads."""
    for source in (-1, 0):
        whole = case.states()
        expected = case.on(CPU, slice(None), state_rows([TOKENS], [source], [3]), whole)
        for lengths, count in zip(CUTS, [1, 2, 3, 1, 2, 3], strict=True):
            with threads(count):
                one_step = case.states()
                sources = [source] + [3] * (len(lengths) - 1)
                rows = state_rows(lengths, sources, [3] * len(lengths))
                assert same(case.on(CPU, slice(None), rows, one_step), expected)
                assert same(one_step, whole)
                _in_steps(case, lengths, source, expected, whole)


def _in_steps(case: Case, lengths: list[int], source: int, expected: Array, whole: Array) -> None:
    """A step for each part, with another row before it; states alternate between two."""
    states, at, destination = case.states(), 0, 4
    for length in lengths:
        tokens = slice(at, at + length)
        both = [np.concatenate((array[:2], array[tokens])) for array in case.inputs]
        destination = 7 - destination  # 3 or 4
        out = case.run(CPU, both, state_rows([2, length], [1, source], [2, destination]), states)
        assert same(out[2:], expected[tokens])
        at, source = tokens.stop, destination
    assert same(states[source], whole[3])


def decodes_as_the_reference(case: Case, dtype: str, kernels: Kernels) -> None:
    """A step of single tokens, of which some go on from one another, with padding: rows without tokens or states."""
    rows = state_rows([1, 1, 1, 1, 1, 0], [-1, 2, 0, 2, 5, -1], [2, 3, 0, 4, -1, -1])
    ours, theirs = case.states(), case.states()
    tokens = slice(5)
    out, expected = case.on(kernels, slice(6), rows, ours), case.on(REFERENCE, tokens, rows, theirs)
    close(out[tokens], expected, dtype)
    close(ours, theirs)


def is_close_however_cut(case: Case, dtype: str, kernels: Kernels, *, exactly: bool) -> None:
    """One row or several, in one step or in several; other rows of the step go on from the same checkpoint."""
    whole = case.states()
    expected = case.on(kernels, slice(None), state_rows([TOKENS], [0], [3]), whole)
    states = case.states()
    # Rows of two sequences take turns: one begins at a state that the other one writes in this step.
    twice = [np.concatenate((array[:9], array[:9], array[9:], array[9:14])) for array in case.inputs]
    rows = state_rows([9, 9, 14, 5], [0, 0, 4, 4], [4, 2, 3, 5])
    out = case.run(kernels, twice, rows, states)
    parts = slice(0, 9), slice(9, 18), slice(18, 32), slice(32, 37)
    of_tokens = slice(0, 9), slice(0, 9), slice(9, TOKENS), slice(9, 14)
    stepwise = case.states()
    steps = [case.on(kernels, slice(17), state_rows([17], [0], [1]), stepwise)]
    steps += [case.on(kernels, slice(17, 22), state_rows([5], [1], [1]), stepwise)]
    steps += [case.on(kernels, slice(22, TOKENS), state_rows([1], [1], [2]), stepwise)]
    pairs = [(out[part], expected[tokens]) for part, tokens in zip(parts, of_tokens, strict=True)]
    pairs += [(np.concatenate(steps), expected), (states[3], whole[3]), (stepwise[2], whole[3])]
    for found, wanted in pairs:
        if exactly:
            assert same(np.ascontiguousarray(found), np.ascontiguousarray(wanted))
        else:
            close(found, wanted, "float32" if found.dtype == np.float32 else dtype)


def is_the_same_in_a_graph(case: Case) -> None:
    rows = state_rows([1] * TOKENS, [-1] * TOKENS, [-1] * TOKENS)
    states, graph, untouched = case.states(), Graph(), case.states()
    with graph.capture():
        out = case.on(CPU, slice(None), rows, states)
    assert graph.num_ops == 1
    assert same(states, untouched), "a capture computes nothing"
    for lengths, sources, destinations in (
        ([9, 3], [-1, 2], [2, 3]),
        ([1, 1, 1], [0, 0, 3], [0, 1, 3]),
        ([TOKENS], [1], [5]),
    ):
        filled, count, tokens = state_rows(lengths, sources, destinations), len(lengths), sum(lengths)
        rows.query_starts[: count + 1] = filled.query_starts
        rows.sources[:count], rows.destinations[:count] = filled.sources, filled.destinations
        expected_states = states.copy()
        expected = case.on(CPU, slice(tokens), filled, expected_states)
        graph.replay(tokens, count)
        assert same(out[:tokens], expected)
        assert same(states, expected_states)


def refuses_what_is_no_state(case: Case) -> None:
    rows, states = state_rows([20, 3], [-1, 2], [5, -1]), case.states()
    for wrong, message in (
        (replace(rows, sources=np.array([-1, 6], np.int32)), "source of row 1 is 6: it must be from -1 to 5"),
        (replace(rows, sources=np.array([-2, 2], np.int32)), "source of row 0 is -2: it must be from -1 to 5"),
        (replace(rows, destinations=np.array([6, 0], np.int32)), "destination of row 0 is 6: it must be from -1 to 5"),
        (state_rows([20, 2], [-1, 2], [5, -1]), "query start 2 is 22: it must be from 23 to 23"),
        (state_rows([20, -4, 7], [0, 0, 0], [0, 0, 0]), "end of the queries of row 1 is 16: it must be from 20 to 23"),
    ):
        with pytest.raises(IndexError, match=message):
            case.on(CPU, slice(None), wrong, states)
    assert same(states, case.states())
    with pytest.raises(ValueError, match=r"destinations is of shape \[1\]: it must be of \[2\]"):
        case.on(CPU, slice(None), replace(rows, destinations=rows.destinations[:1]), states)
    with pytest.raises(ValueError, match="states is float64: give float32"):
        case.on(CPU, slice(None), rows, states.astype(np.float64))
    with pytest.raises(ValueError, match=r"is of shape \[.*\]: it must be of"):
        case.on(CPU, slice(None), rows, np.zeros((2, case.state_shape[0] + 1, *case.state_shape[1:]), np.float32))
