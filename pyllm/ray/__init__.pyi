from .application import app, build

__all__ = [
    "app",
    "build",
]
