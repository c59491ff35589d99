"""Launches a kernel as Triton does and by `Launcher`, and prints what each gave to the card.

A process of its own (`python -m tests.kernels.compare_launches`), because it must not see TRITON_INTERPRET.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import json
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from pyllm_kernels.launcher import Launcher
from torch import Tensor

from benchmarks.gpu.offline_driver import OfflineDriver

CONSTANTS = {"FACTOR": 2, "SIZE": 16, "num_warps": 2, "enable_fp_fusion": True}  # In another order than the parameters.


class RecordingDriver(OfflineDriver):
    """Notes the version, grid and arguments of each launch."""

    def __init__(self) -> None:
        super().__init__(90)
        self.launched: list[list[object]] = []

    def launcher_cls(self, source: object, metadata: Any) -> Callable[..., None]:
        def launch(*arguments: Any) -> None:
            # Three sizes of the grid, six things that are the driver's, and the kernel's arguments.
            given = [each.data_ptr() if isinstance(each, Tensor) else each for each in arguments[9:]]
            self.launched.append([metadata.hash, arguments[:3], given])

        return launch


@triton.jit(do_not_specialize=["tokens"])
def _scale_kernel(x_ptr, y_ptr, tokens, stride, factor, SIZE: tl.constexpr, FACTOR: tl.constexpr):  # noqa: N803  # As in kernels.
    columns = tl.arange(0, SIZE)
    x = tl.load(x_ptr + tl.program_id(0) * stride + columns) * FACTOR * factor
    tl.store(y_ptr + tl.program_id(0) * stride + columns, x, mask=columns < tokens)


def cases() -> list[tuple[tuple[Tensor, Tensor], tuple[int, int, float]]]:
    """Tensors and numbers. Each case is of another kind than the first, or of the same with other numbers."""
    x = torch.zeros(64)
    numbers = (16, 16, 0.5)
    return [
        ((x, x), numbers),
        ((x, x), (48, 32, 0.25)),
        ((x[1:], x), numbers),
        ((x, x[1:]), numbers),
        ((x[1:], x[1:]), numbers),
        ((x.half(), x), numbers),
        ((x, x), (1, 16, 0.5)),
        ((x, x), (16, 1, 0.5)),
        ((x, x), (16, 17, 0.5)),
        ((x, x), (16, 2**32, 0.5)),
        ((x, x), (16, 16, 1)),
        ((x, x), (16, 16, 1.0)),
    ]


def main() -> None:
    driver = RecordingDriver()
    triton.runtime.driver.set_active(driver)
    launcher = Launcher(_scale_kernel, CONSTANTS)
    plainly, by_launcher = [], []
    # In the second round every version is known, in the third each grid has changed.
    for rows in (1, 1, 5):
        for tensors, numbers in cases():
            _scale_kernel[(rows, 2)](*tensors, *numbers, **CONSTANTS)
            launcher((rows, 2, 1), tensors, numbers)
            pair = driver.launched[-2:]
            plainly.append(pair[0])
            by_launcher.append(pair[1])
    print(json.dumps({"plainly": plainly, "by_launcher": by_launcher}))


if __name__ == "__main__":
    main()
