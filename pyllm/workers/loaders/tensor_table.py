"""Maps the tensors of a checkpoint and notes which of them were read. Does not know their element types."""

import numpy as np
import numpy.typing as npt

from pyllm.checkpoint.types import Checkpoint, TensorEntry
from pyllm.errors import ConfigError


class TensorTable:
    """Maps the files privately: pages are read when they are touched, and never written back."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._files = [np.asarray(np.memmap(file, np.uint8, "c")) for file in checkpoint.files]
        self._entries = {entry.name: entry for entry in checkpoint.tensors}
        self._unread = set(self._entries)

    def find(self, name: str, shape: tuple[int, ...]) -> tuple[TensorEntry, npt.NDArray[np.uint8]]:
        """A tensor's entry, and its bytes.

        Raises:
            ConfigError: the checkpoint has no such tensor or one of another shape, or the file has shrunk.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise ConfigError(f"the model's files have no tensor {name!r}, which its architecture needs")
        if entry.shape != shape:
            raise ConfigError(f"tensor {name!r} has the shape {entry.shape}, and its architecture needs {shape}")
        content = self._files[entry.file][entry.offset : entry.offset + entry.num_bytes]
        if len(content) != entry.num_bytes:
            raise ConfigError(f"tensor {name!r} ends behind the end of its file: was the file changed just now?")
        self._unread.discard(name)
        return entry, content

    def check_all_read(self) -> None:
        """Refuse a checkpoint with tensors that the model ignores.

        Raises:
            ConfigError: the text names the tensors that no layer has read.
        """
        if self._unread:
            names = ", ".join(sorted(self._unread)[:5])
            raise ConfigError(f"{len(self._unread)} tensors belong to no layer of this architecture: {names}")
