from .routes import responses_routes

__all__ = [
    "responses_routes",
]
