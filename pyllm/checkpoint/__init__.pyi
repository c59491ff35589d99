from .cache import CacheError, cache_folder, file_identity, forget_gguf, weights_digest, write_file
from .generation_config import SamplingDefaults, parse_overrides
from .gguf_types import BLOCK_SIZES, FLOAT_TYPES, REQUANTISED_TYPES
from .hub import Hub, find_model, outline_model, size_text
from .hub_cache import CachedModel, cached_models, remove
from .huggingface import Probe, read_generation_config
from .model_name import FORMS, HubName, at_revision, parse_hub_name, parse_model
from .quantization_config import QuantizationMethod
from .reader import embedded_model, read_checkpoint
from .types import Checkpoint, TokenizerFiles, check_unchanged

__all__ = [
    "BLOCK_SIZES",
    "FLOAT_TYPES",
    "FORMS",
    "REQUANTISED_TYPES",
    "CacheError",
    "CachedModel",
    "Checkpoint",
    "Hub",
    "HubName",
    "Probe",
    "QuantizationMethod",
    "SamplingDefaults",
    "TokenizerFiles",
    "at_revision",
    "cache_folder",
    "cached_models",
    "check_unchanged",
    "embedded_model",
    "file_identity",
    "find_model",
    "forget_gguf",
    "outline_model",
    "parse_hub_name",
    "parse_model",
    "parse_overrides",
    "read_checkpoint",
    "read_generation_config",
    "remove",
    "size_text",
    "weights_digest",
    "write_file",
]
