from .routes import admin_routes

__all__ = [
    "admin_routes",
]
