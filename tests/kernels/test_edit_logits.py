"""`edit_logits` of the reference and of Rust against a loop over tokens; odd sizes, and what is refused."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyllm_kernels import LogitsEdits
from pyllm_kernels.gpu import logits as by_torch
from pyllm_kernels.ops.edit_logits import edit_logits
from pyllm_kernels.tensors import Tensor, numpy_dtype
from pyllm_kernels.torch_bridge import as_array, as_tensor

from tests.kernels.logits_cases import edits_of, ints, masks_of
from tests.tiers import cases

DTYPES = ["float32", "bfloat16", "float16"]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NOTHING = edits_of([{}])

EditLogits = Callable[..., npt.NDArray[np.float32]]


def on_tensors(edit: Callable[..., Tensor], device: torch.device) -> EditLogits:
    """A version for tensors as one for arrays. Its output is not in the memory that is given."""

    def run(logits: Tensor, rows: Tensor, edits: LogitsEdits, *masks: Tensor, out: Tensor | None = None) -> Tensor:
        def there(array: npt.NDArray[Any]) -> torch.Tensor:
            return as_tensor(array.copy()).to(device)

        given = None if out is None else there(out)
        moved = edits.moved(lambda columns: list(map(there, columns)))
        return as_array(edit(there(logits), there(rows), moved, *map(there, masks), out=given))

    return run


IMPLEMENTATIONS: dict[str, EditLogits] = {
    "reference": edit_logits.reference,
    "cpu": edit_logits,
    "tensors": on_tensors(edit_logits, torch.device("cpu")),
    "gpu": on_tensors(by_torch.edit_logits, DEVICE),
}


@np.errstate(invalid="ignore")  # A mask that excludes what is infinite leaves no number.
def naive(logits: np.ndarray, edits: dict[int, tuple[float, float, float]], allowed: set[int] | None) -> list[float]:
    """One row, token by token, in the order and precision of the specification."""
    edited = []
    for token, logit in enumerate(logits):
        bias, repetition, subtracted = map(np.float32, edits.get(token, (0.0, 1.0, 0.0)))
        biased = (np.float32(-np.inf) if allowed is not None and token not in allowed else logit) + bias
        penalised = biased / repetition if biased > 0 else biased * repetition
        edited.append(float(penalised - subtracted))
    return edited


@settings(max_examples=cases(100))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("edit", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
@given(data=st.data())
def test_rows_are_copied_then_masked_then_edited(edit: EditLogits, dtype: str, data: st.DataObject) -> None:
    num_rows, vocabulary = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([1, 5, 31, 32, 33, 64, 100]))
    logits = (randn(num_rows, vocabulary + 3) * 4).astype(numpy_dtype(dtype))[:, :vocabulary]  # Rows lie apart.
    tokens = st.integers(0, vocabulary - 1)
    numbers = st.tuples(
        st.sampled_from([0.0, 1.5, -2.0, -math.inf, math.inf]),
        st.sampled_from([1.0, 1.3, 0.6]),
        st.sampled_from([0.0, 0.7, -2]),
    )
    edits = data.draw(st.lists(st.dictionaries(tokens, numbers, max_size=6), max_size=5))
    rows = data.draw(st.lists(st.integers(0, num_rows - 1), min_size=len(edits), max_size=len(edits)))
    # More words than the vocabulary needs, or fewer.
    num_words = data.draw(st.integers(0, 5))
    allowed = data.draw(st.lists(st.sets(st.integers(0, max(32 * num_words - 1, 0)), max_size=40), max_size=3))
    allowed = [tokens if num_words else set() for tokens in allowed]
    mask_rows = data.draw(st.lists(st.integers(-1, len(allowed) - 1), min_size=len(edits), max_size=len(edits)))
    edited = edit(logits, ints(*rows), edits_of(edits), ints(*mask_rows), masks_of(allowed, num_words))
    assert edited.dtype == np.float32
    assert edited.shape == (len(edits), vocabulary)
    expected = [
        naive(logits[row].astype(np.float32), changes, allowed[mask] if mask >= 0 else None)
        for row, changes, mask in zip(rows, edits, mask_rows, strict=True)
    ]
    np.testing.assert_array_equal(edited, np.array(expected).reshape(edited.shape))


@pytest.mark.parametrize("edit", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
def test_without_masks_rows_are_only_edited(edit: EditLogits) -> None:
    logits = randn(3, 40)
    edited = edit(logits, ints(2, 2), edits_of([{}, {7: (1.0, 1.0, 0.0)}]))
    assert np.array_equal(edited[0], logits[2])
    assert edited[1, 7] == logits[2, 7] + 1
    logits[2, 0] = 99  # It is a copy.
    assert edited[0, 0] != 99


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["reference", "cpu"])
def test_the_output_may_be_given(kind: str, dtype: str) -> None:
    edit, edits = IMPLEMENTATIONS[kind], edits_of([{3: (1.0, 1.0, 0)}])
    logits, row = randn(1, 40).astype(numpy_dtype(dtype)), ints(0)
    out = np.full((1, 40), np.nan, np.float32)
    assert edit(logits, row, edits, out=out) is out
    for other in IMPLEMENTATIONS.values():
        assert np.array_equal(out, other(logits, row, edits))
        assert np.array_equal(out, other(logits, row, edits, out=np.full_like(out, np.nan)))


def test_masks_may_be_unsigned() -> None:
    logits, row = randn(1, 40), ints(0)
    masks = masks_of([{0, 31, 39}], 2)
    expected = edit_logits.reference(logits, row, NOTHING, row, masks)
    for edit in IMPLEMENTATIONS.values():
        assert np.array_equal(edit(logits, row, NOTHING, row, masks.view(np.uint32)), expected)
    assert np.flatnonzero(np.isfinite(expected)).tolist() == [0, 31, 39]


def test_the_device_picks_the_version_and_edits_move_to_it() -> None:
    logits, rows = randn(4, 300), ints(3, 0)
    edits = edits_of([{5: (-math.inf, 1.0, 0.0), 6: (0.5, 1.2, 0.1)}, {}])
    arguments = logits, rows, edits, ints(-1, 0), masks_of([set(range(0, 300, 3))], 10)
    expected = edit_logits.reference(*arguments)
    assert np.array_equal(on_tensors(edit_logits, DEVICE)(*arguments), expected)
    moved = edits.moved(lambda columns: [torch.from_numpy(column).to("meta") for column in columns])
    assert [(x.shape, x.dtype) for x in (moved.starts, moved.bias)] == [((3,), torch.int32), ((2,), torch.float32)]


def test_what_a_pointer_cannot_say_is_checked() -> None:
    logits, row = randn(2, 40), ints(0)
    masks = masks_of([{0}], 2)
    with pytest.raises(ValueError, match=r"rows is int64: give int32"):
        edit_logits(logits, row.astype(np.int64), NOTHING)
    with pytest.raises(ValueError, match=r"starts is of shape \[2\]: it must be of \[3\]"):
        edit_logits(logits, ints(0, 0), NOTHING)
    with pytest.raises(ValueError, match=r"bias is of shape \[0\]: it must be of \[1\]"):
        edit_logits(logits, row, LogitsEdits(ints(0, 0), row, NOTHING.bias, NOTHING.bias, NOTHING.bias))
    with pytest.raises(ValueError, match=r"masks are int64: give int32 or uint32"):
        edit_logits(logits, row, NOTHING, row, masks.astype(np.int64))
    with pytest.raises(ValueError, match=r"mask_rows is of shape \[2\]: it must be of \[1\]"):
        edit_logits(logits, row, NOTHING, ints(0, 0), masks)
    with pytest.raises(ValueError, match=r"out is of shape \[2, 40\]: it must be of \[1, 40\]"):
        edit_logits(logits, row, NOTHING, out=np.empty((2, 40), np.float32))
    with pytest.raises(IndexError, match="row of sample 0 is 2: it must be from 0 to 1"):
        edit_logits(logits, row + 2, NOTHING)
    with pytest.raises(IndexError, match="mask of sample 0 is 1: it must be from -1 to 0"):
        edit_logits(logits, row, NOTHING, row + 1, masks)
    with pytest.raises(IndexError, match="token of edit 0 is 40: it must be from 0 to 39"):
        edit_logits(logits, row, edits_of([{40: (0.0, 1.0, 0.0)}]))


def randn(*shape: int) -> npt.NDArray[np.float32]:
    return torch.randn(shape).numpy()
