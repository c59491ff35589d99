from .page_files import is_public, page_routes

__all__ = [
    "is_public",
    "page_routes",
]
