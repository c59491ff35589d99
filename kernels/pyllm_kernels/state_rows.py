"""The rows of a step with their states, as the references go through them. Knows no op."""

from collections.abc import Iterator

import numpy as np

from pyllm_kernels.metadata import StateRows
from pyllm_kernels.tensors import Array


def each_row(rows: StateRows, states: Array) -> Iterator[tuple[slice, Array]]:
    """The tokens of each row in order, and a copy of the state before it, which the caller changes to that after it."""
    starts = rows.query_starts.tolist()
    for row, (source, destination) in enumerate(zip(rows.sources.tolist(), rows.destinations.tolist(), strict=True)):
        state = np.zeros_like(states[0]) if source < 0 else states[source].copy()
        yield slice(starts[row], starts[row + 1]), state
        if destination >= 0:
            states[destination] = state
