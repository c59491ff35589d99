"""The edits of `edit_logits`, as columns. Knows neither requests nor the reasons for edits."""

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LogitsEdits:
    """Ragged edits: row i has the edits `starts[i]` to `starts[i + 1]`, each of another token.

    `bias` is added to a logit; then a positive one is divided by `repetition`, any other multiplied by it; then
    `subtracted` is subtracted.
    """

    starts: Tensor  # int32 [rows + 1]
    ids: Tensor  # int32 [edits]
    bias: Tensor  # float32 [edits]
    repetition: Tensor  # float32 [edits], positive
    subtracted: Tensor  # float32 [edits]

    @classmethod
    def from_columns(cls, columns: tuple[bytearray, bytearray, bytearray, bytearray, bytearray]) -> Self:
        """The result of `LogitsStates.edits` as tensors on the host, without a copy."""
        starts, ids, *floats = columns
        return cls(*(_tensor(column, np.int32) for column in (starts, ids)), *(_tensor(f, np.float32) for f in floats))

    def to(self, device: torch.device) -> Self:
        """The edits on a device, by one copy; the caller does not wait for it."""
        if self.starts.device == device:
            return self
        columns: list[Tensor] = [getattr(self, field.name) for field in fields(self)]
        packed = torch.cat([column.view(torch.int32) for column in columns])
        if device.type == "cuda":
            packed = packed.pin_memory()
        moved = torch.split(packed.to(device, non_blocking=True), [len(column) for column in columns])
        return type(self)(*(part.view(column.dtype) for part, column in zip(moved, columns, strict=True)))


def _tensor(column: bytearray, dtype: type[np.int32] | type[np.float32]) -> Tensor:
    return torch.from_numpy(np.frombuffer(column, dtype))
