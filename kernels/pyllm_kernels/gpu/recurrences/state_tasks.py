"""Rows with states by the program that computes them: rows that go on from one another have one program.

A step may have several rows of one sequence, where checkpoints are kept, and rows of other sequences that continue from
a checkpoint of the same step. Such rows are a tree; its program goes through them in their order. All other rows are
computed side by side. Does not know the computation of a row.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.integers import next_power_of_2
from pyllm_kernels.metadata import StateRows, StateTasks


def plan_states(rows: StateRows) -> StateRows:
    num_rows = rows.sources.shape[0]
    firsts, following = torch.empty((2, num_rows), dtype=torch.int32, device=rows.sources.device)
    options = {"BLOCK": next_power_of_2(max(num_rows, 1)), "num_warps": 4, "enable_fp_fusion": True}
    if num_rows:
        _firsts_kernel[(num_rows,)](rows.sources, rows.destinations, firsts, num_rows, **options)
        _following_kernel[(num_rows,)](firsts, following, num_rows, **options)
    return replace(rows, tasks=StateTasks(firsts, following))


def row_tensors(rows: StateRows) -> tuple[Tensor, ...]:
    """The rows as the kernels with states take them: starts, sources, destinations, and the tasks."""
    if rows.tasks is None:
        rows = plan_states(rows)
    return rows.query_starts, rows.sources, rows.destinations, rows.tasks.firsts, rows.tasks.following


@triton.jit(do_not_specialize=["num_rows"])
def _firsts_kernel(sources_ptr, destinations_ptr, firsts_ptr, num_rows, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    rows = tl.arange(0, BLOCK)
    destinations = tl.load(destinations_ptr + rows, mask=rows < num_rows, other=-1)
    first = row
    # Not `row` itself: of two names of one value that a loop changes, Triton carries one.
    writer = _writer(destinations, rows, tl.load(sources_ptr + row), row)
    while writer >= 0:
        first = writer
        writer = _writer(destinations, rows, tl.load(sources_ptr + first), first)
    tl.store(firsts_ptr + row, first)


@triton.jit(do_not_specialize=["num_rows"])
def _following_kernel(firsts_ptr, following_ptr, num_rows, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    rows = tl.arange(0, BLOCK)
    firsts = tl.load(firsts_ptr + rows, mask=rows < num_rows, other=-1)
    is_later = (firsts == tl.load(firsts_ptr + row)) & (rows > row)
    tl.store(following_ptr + row, tl.min(tl.where(is_later, rows, num_rows), axis=0))


@triton.jit
def _writer(destinations, rows, source, row):
    """The last row before `row` that writes its source; -1: none."""
    wrote = (destinations == source) & (rows < row)
    return tl.where(source >= 0, tl.max(tl.where(wrote, rows, -1), axis=0), -1)
