"""A device of torch: a GPU, or the CPU for models of transformers."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from pyllm_kernels.tensors import Array
from pyllm_kernels.torch_bridge import as_array, as_tensor
from torch import Tensor

from pyllm.families.spec import TransformersSpec
from pyllm.workers.devices.device import Device, Rows


class DeviceCopy:
    """See `HostCopy`: from a GPU to pinned memory."""

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

    def wait(self) -> Array:
        """The tensor in host memory."""
        if self._done is not None:
            self._done.synchronize()
        return as_array(self._tensor)


class TorchDevice:
    """See `Device`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __str__(self) -> str:
        return str(self.device)

    @property
    def type(self) -> str:
        """See `Device.type`."""
        return self.device.type

    @property
    def name(self) -> str:
        """The name of the GPU."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type

    def empty(self, shape: Sequence[int], dtype: str) -> Tensor:
        """See `Device.empty`."""
        return torch.empty(tuple(shape), dtype=torch_dtype(dtype), device=self.device)

    def zeros(self, shape: Sequence[int], dtype: str) -> Tensor:
        """See `Device.zeros`."""
        kind = torch_dtype(dtype)
        # Not every version of torch fills fp8.
        size = (*shape[:-1], shape[-1] * kind.itemsize)
        return torch.zeros(size, dtype=torch.uint8, device=self.device).view(kind)

    def from_host(self, array: Array) -> Tensor:
        """Copy an array to the device; to a GPU through pinned memory, which torch keeps until the copy is done."""
        tensor = as_tensor(np.ascontiguousarray(array))
        if self.device.type != "cuda":
            return tensor
        pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
        return pinned.to(self.device, non_blocking=True)

    def all_from_host(self, arrays: Sequence[Array]) -> Sequence[Tensor]:
        """See `Device.all_from_host`: views of one tensor."""
        packed = self.from_host(np.concatenate([array.view(np.int32) for array in arrays]))
        parts = torch.split(packed, [len(array) for array in arrays])
        return [part.view(torch_dtype(array.dtype.name)) for part, array in zip(parts, arrays, strict=True)]

    def host_copy(self, tensor: Tensor) -> DeviceCopy:
        """See `Device.host_copy`."""
        return DeviceCopy(tensor)

    def host_room(self, size: int, room: Array | None) -> Array:
        """New memory, pinned for a GPU: torch caches it, and does not reuse it while a copy from it is in progress."""
        del room
        return torch.empty(size, dtype=torch.uint8, pin_memory=self.device.type == "cuda").numpy()

    def take(self, tensor: Tensor, rows: Rows) -> Tensor:
        """See `Device.take`."""
        return tensor.index_select(0, self.from_host(rows))

    def assign(self, to: Tensor, targets: Rows, source: Tensor, origins: Rows) -> None:
        """See `Device.assign`."""
        both = self.from_host(np.stack((targets, origins)).astype(np.int64))
        to[both[0]] = source[both[1]]

    def concatenate(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """See `Device.concatenate`."""
        return torch.cat(list(parts), dim=axis)

    def computing(self) -> AbstractContextManager[object]:
        """Without gradients."""
        return torch.inference_mode()

    def synchronize(self) -> None:
        """See `Device.synchronize`."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of this name."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def capability_of(device: Device) -> tuple[int, int]:
    """The compute capability of a GPU: major, minor."""
    return torch.cuda.get_device_capability(_gpu(device))


def free_bytes(device: Device, utilization: float, compute: Callable[[], object]) -> int:
    """The rest of this share of a GPU's memory beside what is in use, and beside the peak of `compute`."""
    gpu = _gpu(device)
    before = torch.cuda.memory_allocated(gpu)
    torch.cuda.reset_peak_memory_stats(gpu)
    compute()
    torch.cuda.synchronize(gpu)
    peak = torch.cuda.max_memory_allocated(gpu) - before
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(gpu)
    return int(total * utilization) - (total - free) - peak


def available_bytes(device: Device) -> int:
    """The bytes of a GPU's memory that nothing uses."""
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(_gpu(device))[0])


def configure_torch(num_threads: int | None, transformers: TransformersSpec | None) -> None:
    """Make torch accumulate matrix products in float32 on every device; by default cuBLAS may accumulate in the dtype.

    Split sums stay allowed: their parts are float32, too. torch gets threads only if it computes much, such as the
    experts of a transformers model: its threads spin for a while after each op and slow down the kernels.
    """
    computes = transformers is not None and transformers.torch_computes
    torch.set_num_threads(num_threads if computes and num_threads is not None else 1)
    matmul = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = False
    matmul.allow_fp16_reduced_precision_reduction = False
    matmul.allow_fp16_accumulation = False
    torch.set_float32_matmul_precision("highest")  # TF32 off


def _gpu(device: Device) -> torch.device:
    assert isinstance(device, TorchDevice), f"a GPU, not {device.type}"
    return device.device
