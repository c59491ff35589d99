"""Maps the tensors of a checkpoint. Does not know their element types."""

import numpy as np
import numpy.typing as npt

from pyllm.checkpoint.types import Checkpoint
from pyllm.errors import ConfigError
from pyllm.families.tensors import TensorEntry


class TensorTable:
    """Maps the files privately: pages are read when they are touched, and never written back."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._files = [np.asarray(np.memmap(file, np.uint8, "c")) for file in checkpoint.files]
        self._entries = {entry.name: entry for entry in checkpoint.tensors}

    def find(self, name: str, shape: tuple[int, ...]) -> tuple[TensorEntry, npt.NDArray[np.uint8]]:
        """The entry of a parameter, and the bytes of its source.

        Raises:
            ConfigError: the file has shrunk.
        """
        entry = self._entries[name]
        assert entry.shape == shape, f"{name} has the shape {entry.shape}, not {shape}"
        source = entry.source
        content = self._files[source.file][source.offset : source.offset + source.num_bytes]
        if len(content) != source.num_bytes:
            raise ConfigError(f"tensor {source.name!r} ends behind the end of its file: was the file changed just now?")
        return entry, content
