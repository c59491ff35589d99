from .formats import weight_reader
from .progress import ProgressReader
from .tensor_table import TensorTable
from .weights import WHOLE, WeightReader, check_finite

__all__ = [
    "WHOLE",
    "ProgressReader",
    "TensorTable",
    "WeightReader",
    "check_finite",
    "weight_reader",
]
