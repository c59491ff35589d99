from .hub import Hub, find_model, size_text
from .hub_cache import CachedModel, cached_models, remove
from .model_name import HubName, parse_hub_name, parse_model
from .reader import embedded_model, read_checkpoint
from .types import Checkpoint, TokenizerFiles

__all__ = [
    "CachedModel",
    "Checkpoint",
    "Hub",
    "HubName",
    "TokenizerFiles",
    "cached_models",
    "embedded_model",
    "find_model",
    "parse_hub_name",
    "parse_model",
    "read_checkpoint",
    "remove",
    "size_text",
]
