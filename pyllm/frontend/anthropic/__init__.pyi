from .routes import count_tokens_route, messages_route

__all__ = [
    "count_tokens_route",
    "messages_route",
]
