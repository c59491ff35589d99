from .resolve import resolve_config

__all__ = [
    "resolve_config",
]
