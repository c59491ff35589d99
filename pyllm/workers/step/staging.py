"""Asynchronous copies between host and device. Does not know their content."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to `device`; to a GPU through pinned memory, in the order of the current stream.

    torch does not reuse that memory until the copy is done.
    """
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class HostCopy:
    """A device tensor on its way to the host: the copy begins at once, `wait` returns it."""

    def __init__(self, tensor: Tensor) -> None:
        self._done: torch.cuda.Event | None = None
        self._tensor = tensor
        if tensor.is_cuda:
            self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._tensor.copy_(tensor, non_blocking=True)
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch gives events no types.
            self._done.record()

    def is_done(self) -> bool:
        """Whether `wait` would not wait."""
        return self._done is None or bool(self._done.query())  # type: ignore[no-untyped-call]  # As above.

    def wait(self) -> Tensor:
        """The tensor in host memory."""
        if self._done is not None:
            self._done.synchronize()
        return self._tensor
