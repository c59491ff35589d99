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

    Every output is made by one chain of float32 operations, rounded once: the same for any number of rows and threads.

    - Of floats, the chain is the sum over the inputs, in an order that follows from the matrix's shape and from the
      instruction set alone.
    - Of integers, the input's rows are made into integers, too, -127 to 127, with a scale for each row ("int8") or for
      each group of 32 features (the others, which are GGUF's). Integer products are exact; the chain is over the groups
      in their order, `sum = fma(input scale * weight scale, product, sum)`, then for "q4_1"
      `sum = fma(minimum, input scale * sum of the input's integers, sum)`. It is the same everywhere.
    """

    def __new__(cls, format: str, dtype: str, in_features: int, out_features: int) -> Linear:
        """`dtype`, of inputs and outputs, is "float32" or "bfloat16"; `format` the same, or one of integers.

        Raises `ValueError` for others, where there are no features, more than 131,072 inputs of "int8", or a number of
        inputs that is no multiple of 32 for the formats of GGUF: "q8_0", "q4_0" and "q4_1".
        """
    @property
    def in_features(self) -> int: ...
    @property
    def out_features(self) -> int: ...
    @property
    def row_bytes(self) -> int:
        """How long a row of the matrix is before it is packed."""
    @property
    def packed_bytes(self) -> int:
        """How much memory the packed matrix takes."""
    def pack(self, weight: int, packed: int) -> None:
        """Write `packed` from the matrix: out_features rows of GGUF's blocks, for other formats of `dtype`."""
    def unpack_rows(self, packed: int, rows: int, num_rows: int, out: int) -> None:
        """Write to out [num_rows, in_features] the rows of the matrix named by rows, int32 [num_rows].

        `IndexError` where there is no such row, with nothing written.
        """
    def run(self, x: int, num_rows: int, packed: int, out: int, out_stride: int) -> None:
        """`out = x @ weight.T`: x [num_rows, in_features], out [num_rows, out_features].

        Output rows begin `out_stride` elements apart; `ValueError` where that is fewer than they have.
        """

def set_num_threads(num_threads: int) -> None:
    """From now on compute with so many threads, the caller's included; 1 at first. `ValueError` beyond 1 to 1,024."""

def num_threads() -> int:
    """How many threads compute."""

def instruction_set() -> str:
    """What the kernels use of this machine: "portable", "avx2", "avx512_vnni", "avx512_bf16" or "amx"."""
