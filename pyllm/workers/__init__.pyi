from .attention_backends import find_attention_backend
from .model_limits import check_supported
from .model_runner import ModelRunner
from .worker_process import load

__all__ = [
    "ModelRunner",
    "check_supported",
    "find_attention_backend",
    "load",
]
