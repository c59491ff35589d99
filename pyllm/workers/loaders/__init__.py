"""Weights from files: one reader for each format, each filling a rank's share of a tensor and no more."""

from pyllm.checkpoint import Checkpoint
from pyllm.workers.loaders.base import WeightReader
from pyllm.workers.loaders.packing import MatrixPart, pack
from pyllm.workers.loaders.table import TensorTable

__all__ = ["MatrixPart", "TensorTable", "WeightReader", "pack", "weight_reader"]


def weight_reader(checkpoint: Checkpoint, table: TensorTable) -> WeightReader:
    """The reader for the checkpoint's format."""
    # Imported here because the gguf package takes a third of a second.
    if checkpoint.format == "gguf":
        from pyllm.workers.loaders.gguf import GgufReader

        return GgufReader(table, checkpoint.architecture.head_dim)
    from pyllm.workers.loaders.safetensors import SafetensorsReader

    return SafetensorsReader(table)
