from .routes import infill_route

__all__ = [
    "infill_route",
]
