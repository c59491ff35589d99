from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllm.engine.shared_arrays import SharedArrays
from pyllm.errors import RequestError


def test_arrays_are_copied_to_a_file_that_other_processes_open() -> None:
    first, second = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(5, np.float16)
    shared = SharedArrays({"first": first.T, "second": second})
    content = Path(shared.path).read_bytes()
    found = {entry.name: entry for entry in shared.entries}
    assert [(each.kind, each.shape) for each in shared.entries] == [("F32", (3, 2)), ("F16", (5,))]
    for name, array in (("first", first.T), ("second", second)):
        entry = found[name]
        assert content[entry.offset : entry.offset + entry.num_bytes] == array.tobytes()
        assert entry.offset % 64 == 0
    path = shared.path
    shared.close()
    assert not Path(path).exists()


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({}, "there is no array"),
        ({"x": [1.0]}, "no array of numpy or tensor of torch: list"),
        ({"x": np.zeros(2)}, "has the dtype float64: give float32, float16, bfloat16"),
        ({3: np.zeros(2, np.float32)}, "got the name 3"),
    ],
)
def test_what_is_no_array_is_refused(arrays: Any, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        SharedArrays(arrays)
