from .llama import LlamaForCausalLM
from .registry import build_model

__all__ = [
    "LlamaForCausalLM",
    "build_model",
]
