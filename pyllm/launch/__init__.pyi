from .resolve import cpu_memory_needed, resolve_config

__all__ = [
    "cpu_memory_needed",
    "resolve_config",
]
