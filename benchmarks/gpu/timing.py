"""Timing on a GPU, and the best rates of the card. Knows no kernel of pyllm."""

import statistics
from collections.abc import Callable
from typing import Protocol

import torch

_REPETITIONS = 40
_OTHER_BYTES = 512 << 20  # larger than any card's L2 cache


class Timer(Protocol):
    """Returns the seconds of a function on the device, without the host's time to launch it."""

    def __call__(self, function: Callable[[], object]) -> float: ...


class CudaTimer:
    """The median of many runs of a CUDA graph, each with cold caches."""

    def __init__(self, device: torch.device) -> None:
        self._other = torch.zeros(_OTHER_BYTES // 4, device=device)

    def __call__(self, function: Callable[[], object]) -> float:
        for _ in range(3):  # Compile, and let libraries choose their kernels.
            function()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's watchdog is another thread.
            function()
        graph.replay()
        seconds = []
        for _ in range(_REPETITIONS):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            # Read, not write: dirty lines would be written back while the graph runs. It also gives the host time
            # for the next launches.
            self._other.sum()
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            seconds.append(begin.elapsed_time(end) / 1000)
        return statistics.median(seconds)


def copy_size(free_bytes: int) -> int:
    """The bytes that the yardstick copies: 2 GiB, but at most half of the free memory for source and destination."""
    return min(2 << 30, free_bytes // 4)


def copy_bandwidth(timer: Timer, device: torch.device, num_bytes: int) -> float:
    """Bytes read and written per second by a copy."""
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    destination = torch.empty_like(source)
    return 2 * num_bytes / timer(lambda: destination.copy_(source))


def matrix_rate(timer: Timer, device: torch.device, dtype: torch.dtype, size: int = 8192) -> float:
    """Operations per second of a square matrix product."""
    a, b = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    return 2 * size**3 / timer(lambda: a @ b)
