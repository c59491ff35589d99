from .config import Config
from .family import Family, GgufNames
from .registry import GROUP, find_family, find_gguf_family
from .rope import at_context
from .spec import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec, NormSpec, RopeSpec, check_tensor_parallel
from .tensors import (
    Add,
    Deinterleave,
    FileTensor,
    Rows,
    TensorEntry,
    TensorNames,
    Transpose,
    map_tensors,
    num_parameters,
)

__all__ = [
    "GROUP",
    "Add",
    "AttentionSpec",
    "Config",
    "Deinterleave",
    "Family",
    "FeedForwardSpec",
    "FileTensor",
    "GgufNames",
    "LayerSpec",
    "ModelSpec",
    "NormSpec",
    "RopeSpec",
    "Rows",
    "TensorEntry",
    "TensorNames",
    "Transpose",
    "at_context",
    "check_tensor_parallel",
    "find_family",
    "find_gguf_family",
    "map_tensors",
    "num_parameters",
]
