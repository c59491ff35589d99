"""The order in which programs compute rows with states, made once a step for all its layers."""

from pyllm_kernels.metadata import StateRows
from pyllm_kernels.op import op


def _plan_states(rows: StateRows) -> StateRows:
    return rows


@op(reference=_plan_states, triton="pyllm_kernels.gpu.recurrences.state_tasks")
def plan_states(rows: StateRows) -> StateRows:
    """The rows with the tasks of one step, for every layer that keeps a state.

    Without this call each op with states makes its own on a GPU, which costs two small kernels a layer. CPUs go through
    the rows in their order, and need no tasks.
    """
    return _plan_states(rows)
