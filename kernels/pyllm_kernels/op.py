"""An op: one function with a version for each backend. Knows no particular op."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")


class BackendError(ValueError):
    """A backend that does not exist, cannot run on the device, or lacks an op."""


@dataclass(frozen=True, eq=False)
class Op(Generic[P, R]):
    """An op, which its CPU version declares: `ops/` has them all.

    - `reference`: its specification, on the host.
    - `triton`: the module of its version for GPUs, a function of the same name; it is imported on demand.

    A call runs the version for the tensors' device; `Kernels` has the versions of one backend.
    """

    cpu: Callable[P, R]
    reference: Callable[P, R]
    triton: str

    @property
    def name(self) -> str:
        return self.cpu.__name__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the op: the Triton version for tensors on a GPU, else the CPU version."""
        is_on_gpu = any(getattr(argument, "is_cuda", False) for argument in args)
        return (self.version("triton") if is_on_gpu else self.cpu)(*args, **kwargs)

    def version(self, backend: str) -> Callable[P, R]:
        """The op's function of a backend: "cpu", "reference" or "triton"."""
        if backend == "cpu":
            return self.cpu
        if backend == "reference":
            return _on_any_device(self.reference)
        if not self.triton:
            raise BackendError(f"{self.name} has no version in Triton: use the cpu backend or the reference")
        version: Callable[P, R] = getattr(importlib.import_module(self.triton), self.name)
        return version


def _on_any_device(reference: Callable[P, R]) -> Callable[P, R]:
    """A reference that also takes tensors of torch, which a process that has not imported torch cannot have."""
    if "torch" not in sys.modules:
        return reference
    from pyllm_kernels.torch_bridge import on_host

    return on_host(reference)


def op(*, reference: Callable[..., Any], triton: str = "") -> Callable[[Callable[P, R]], Op[P, R]]:
    """Make the CPU version of an op, which this decorates, the op itself."""
    quiet = np.errstate(all="ignore")(reference)  # Infinities and NaNs are as welcome as in the other versions.
    return lambda cpu: _documented(Op(cpu, quiet, triton))


def _documented(made: Op[P, R]) -> Op[P, R]:
    object.__setattr__(made, "__doc__", made.cpu.__doc__)
    return made


class Kernels:
    """The ops of a backend: `kernels[rms_norm](x, weight, epsilon)`. Those in `replaced` have other versions here."""

    def __init__(self, backend: str, replaced: dict[Op[Any, Any], Callable[..., Any]] | None = None) -> None:
        self.backend = backend
        self._versions = dict(replaced or {})

    def __getitem__(self, op: Op[P, R]) -> Callable[P, R]:
        """The op's version. Raises `BackendError` if the backend has none."""
        version: Callable[P, R] | None = self._versions.get(op)
        if version is None:
            version = self._versions[op] = op.version(self.backend)
        return version

    def replaced(self, op: Op[..., R], version: Callable[..., R]) -> "Kernels":
        """These ops with another version of one of them."""
        return Kernels(self.backend, self._versions | {op: version})
