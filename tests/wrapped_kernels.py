"""Kernels whose ops a test observes or changes."""

from collections.abc import Callable
from typing import Any

from pyllm_kernels import Kernels
from pyllm_kernels.op import Op, P, R

Wrap = Callable[[str, Callable[..., Any]], Callable[..., Any]]


class WrappedKernels(Kernels):
    """The ops of other kernels, each passed through `wrap` with its name when it is first asked for."""

    def __init__(self, kernels: Kernels, wrap: Wrap) -> None:
        super().__init__(kernels.backend)
        self._kernels = kernels
        self._wrap = wrap

    def __getitem__(self, op: Op[P, R]) -> Callable[P, R]:
        if op not in self._versions:
            self._versions[op] = self._wrap(op.name, self._kernels[op])
        version: Callable[P, R] = self._versions[op]
        return version
