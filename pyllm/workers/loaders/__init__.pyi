from .formats import weight_reader
from .tensor_table import TensorTable
from .weights import WHOLE, WeightReader

__all__ = [
    "WHOLE",
    "TensorTable",
    "WeightReader",
    "weight_reader",
]
