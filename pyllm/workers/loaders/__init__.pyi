from .formats import weight_reader
from .progress import ProgressReader
from .tensor_table import TensorTable
from .weights import WHOLE, WeightReader

__all__ = [
    "WHOLE",
    "ProgressReader",
    "TensorTable",
    "WeightReader",
    "weight_reader",
]
