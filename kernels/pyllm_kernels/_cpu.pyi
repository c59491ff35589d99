"""The kernels for CPUs, written in Rust: `kernels/src`. `linear.py` is its one caller.

Tensors cross as addresses. Their sizes follow from the other arguments, their elements lie one after the other, and the
caller keeps them alive and lets nobody write to them during the call. The interpreter lock is released while a kernel
works. Calls from several threads wait for one another, as there is one pool of threads.
"""

from typing import final

__all__ = ["Linear", "instruction_set", "num_threads", "set_num_threads"]

@final
class Linear:
    """How a matrix [out_features, in_features] is packed: 32 outputs side by side, zeros where there are fewer.

    Every output is one float32 sum over the inputs in their order, rounded once: the same for any number of rows and
    threads, but not on every instruction set.
    """

    def __new__(cls, dtype: str, in_features: int, out_features: int) -> Linear:
        """`dtype`, of weights, inputs and outputs, is "float32" or "bfloat16".

        Raises `ValueError` for others, and where there are no features.
        """
    @property
    def in_features(self) -> int: ...
    @property
    def out_features(self) -> int: ...
    @property
    def packed_bytes(self) -> int:
        """How much memory the packed matrix takes."""
    def pack(self, weight: int, packed: int) -> None:
        """Write `packed` from weight [out_features, in_features]."""
    def unpack_rows(self, packed: int, rows: int, num_rows: int, out: int) -> None:
        """Write to out [num_rows, in_features] the rows of the matrix named by rows, int32 [num_rows].

        `IndexError` where there is no such row; the rows before it have been written then.
        """
    def run(self, x: int, num_rows: int, packed: int, out: int) -> None:
        """`out = x @ weight.T`: x [num_rows, in_features], out [num_rows, out_features]."""

def set_num_threads(num_threads: int) -> None:
    """From now on compute with so many threads, the caller's included; 1 at first. `ValueError` beyond 1 to 1,024."""

def num_threads() -> int:
    """How many threads compute."""

def instruction_set() -> str:
    """What the kernels use of this machine: "portable", "avx2", "avx512_vnni" or "avx512_bf16"."""
