"""A plan's sections as numpy arrays, for fakes and assertions."""

import numpy as np
import numpy.typing as npt

from pyllm._rust import Plan
from pyllm.wire.plan_layout import PLAN_SECTIONS, plan_offsets

DTYPES = {"i": np.int32, "f": np.float32, "B": np.uint8}


def read_plan(plan: Plan) -> dict[str, npt.NDArray[np.generic]]:
    """Each section by its name."""
    counts = tuple(plan.counts)
    frame = memoryview(plan)
    return {
        name: np.frombuffer(frame, DTYPES[element], count, offset).copy()
        for (name, element), count, offset in zip(PLAN_SECTIONS, counts, plan_offsets(counts), strict=False)
    }
