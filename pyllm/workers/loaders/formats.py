"""The choice of a reader by the checkpoint's format. Knows no tensor."""

from pyllm.checkpoint.types import Checkpoint
from pyllm.workers.loaders.dummy import DummyReader
from pyllm.workers.loaders.gguf import GgufReader
from pyllm.workers.loaders.quantised import QuantisedReader
from pyllm.workers.loaders.safetensors import SafetensorsReader
from pyllm.workers.loaders.tensor_table import TensorTable
from pyllm.workers.loaders.weights import WeightReader


def weight_reader(checkpoint: Checkpoint, table: TensorTable) -> WeightReader:
    """The reader for the checkpoint's format."""
    if checkpoint.format == "gguf":
        return GgufReader(table)
    if checkpoint.format == "dummy":
        return DummyReader(checkpoint)
    plain = SafetensorsReader(table)
    return QuantisedReader(table, plain, checkpoint.quantization) if checkpoint.quantization else plain
