"""The graph that other tests rely on refuses what CUDA's does, and replays what was recorded, not the Python."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from pyllm_kernels import select
from pyllm_kernels.ops.blocks import copy_blocks
from torch import Tensor

from tests.workers.fake_capture import FakeCapture, NotCapturableError

CPU = torch.device("cpu")  # where the model is, in these tests
VALUES, COUNTS = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2, 0, 1])
REFUSED: dict[str, Callable[[], object]] = {
    "item": lambda: VALUES.sum().item(),
    "tolist": VALUES.tolist,
    "bool": lambda: bool(VALUES[0]),
    "int": lambda: int(VALUES[0]),
    "cpu": VALUES.cpu,
    "to cpu": lambda: VALUES.to("cpu"),
    "to device cpu": lambda: VALUES.to(device="cpu", dtype=torch.float32),
    "index by a number": lambda: VALUES[COUNTS[0]],
    "index by two": lambda: VALUES.view(1, 3)[:, COUNTS[2]],
    "write at a number": lambda: VALUES.clone().__setitem__(COUNTS[0], 1.0),
    "numpy": VALUES.numpy,
    "nonzero": VALUES.nonzero,
    "mask": lambda: VALUES[VALUES > 1],
    "masked_select": lambda: VALUES.masked_select(VALUES > 1),
    "equal": lambda: torch.equal(VALUES, VALUES),
    "unique": VALUES.unique,
    "where": lambda: torch.where(VALUES > 1),
    "argwhere": lambda: torch.argwhere(VALUES),
    "repeat_interleave": lambda: VALUES.repeat_interleave(COUNTS),
    "repeat_interleave of counts": lambda: torch.repeat_interleave(COUNTS),
    "one_hot": lambda: torch.nn.functional.one_hot(COUNTS),
    "allclose": lambda: torch.allclose(VALUES, VALUES),
    "is_nonzero": lambda: torch.is_nonzero(VALUES[0]),
    "array": lambda: np.asarray(VALUES),
    "pinned memory": lambda: torch.empty(3, pin_memory=True),
    "pin_memory": VALUES.pin_memory,
    "copy from the host": lambda: torch.tensor([1.0]),
    "new_tensor": lambda: VALUES.new_tensor([1.0]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cuda_refuses_is_refused(name: str) -> None:
    def compute() -> Tensor:
        REFUSED[name]()
        return VALUES + 1

    with torch.inference_mode(), pytest.raises(NotCapturableError):
        FakeCapture(warm_up=False)(compute)


@torch.inference_mode()
def test_what_cuda_takes_is_taken() -> None:
    """Sizes that the host knows, a mask that chooses numbers, and memory of the graph's own."""
    mask = VALUES > 1

    def compute() -> Tensor:
        repeated = VALUES.repeat_interleave(2)[:3] + VALUES.repeat_interleave(COUNTS, output_size=3)
        return torch.where(mask, repeated, torch.empty(3).zero_()) + VALUES[COUNTS].to(CPU, torch.float32)

    output, replay = FakeCapture(warm_up=False)(compute)
    replay()
    assert output.tolist() == [3.0, 3.0, 7.0]


@torch.inference_mode()
def test_a_replay_reads_memory_anew_and_runs_no_python() -> None:
    memory, factor = torch.zeros(4), [2.0]

    def compute() -> Tensor:
        part = memory[1:3]
        doubled = part * factor[0]
        return doubled.add_(1.0)

    output, replay = FakeCapture()(compute)
    assert output.tolist() == [1.0, 1.0]
    memory.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    factor[0] = 100.0
    replay()
    assert output.tolist() == [5.0, 7.0]
    replay()
    assert output.tolist() == [5.0, 7.0]


@torch.inference_mode()
def test_memory_that_was_freed_is_found_out() -> None:
    inputs = {"x": torch.ones(3)}
    output, replay = FakeCapture()(lambda: inputs["x"] + 1)
    replay()
    assert output.tolist() == [2.0, 2.0, 2.0]
    inputs["x"] = torch.ones(3)
    with pytest.raises(NotCapturableError, match=r"memory \[3\] that has been freed"):
        replay()


@torch.inference_mode()
def test_graphs_share_their_memory_and_what_nobody_wrote_is_no_number() -> None:
    capture, x = FakeCapture(), torch.ones(2)
    first, replay_first = capture(lambda: x + 1)
    second, replay_second = capture(lambda: torch.empty(2))
    replay_first()
    assert first.tolist() == [2.0, 2.0]
    replay_second()
    assert first.isnan().all()
    assert second.isnan().all()
    assert capture.replays == [2, 2]


@torch.inference_mode()
def test_a_kernel_is_one_launch_whatever_it_does() -> None:
    capture = FakeCapture()
    kernels = capture.launching(select("reference", "cpu"))
    table = torch.arange(12.0).view(3, 1, 2, 2)
    copies = torch.tensor([[0, 1]], dtype=torch.int32)

    def compute() -> Tensor:
        kernels[copy_blocks](table, table, copies)  # asks for numbers
        return table[1] * 1

    output, replay = capture(compute)
    assert capture.launches == [3]
    copies[0, 0] = 2
    replay()
    assert torch.equal(output, table[2])
