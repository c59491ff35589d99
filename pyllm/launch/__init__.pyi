from .probe_process import probe_model
from .resolve import cpu_memory_needed, resolve_config

__all__ = [
    "cpu_memory_needed",
    "probe_model",
    "resolve_config",
]
