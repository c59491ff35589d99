from .formats import weight_reader
from .local_files import on_this_machine
from .packed_cache import PackedCache, open_packed_cache
from .progress import ProgressReader
from .tensor_table import TensorTable
from .weights import WHOLE, WeightReader, check_finite

__all__ = [
    "WHOLE",
    "PackedCache",
    "ProgressReader",
    "TensorTable",
    "WeightReader",
    "check_finite",
    "on_this_machine",
    "open_packed_cache",
    "weight_reader",
]
