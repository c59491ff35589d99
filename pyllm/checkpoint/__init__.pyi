from .reader import read_checkpoint
from .types import Architecture, Checkpoint, TensorEntry, TokenizerFiles, check_tensor_parallel

__all__ = [
    "Architecture",
    "Checkpoint",
    "TensorEntry",
    "TokenizerFiles",
    "check_tensor_parallel",
    "read_checkpoint",
]
