from .answer_headers import AnswerHeaders
from .error_answer import render_error
from .gateway import Gateway
from .middleware import with_middleware

__all__ = [
    "AnswerHeaders",
    "Gateway",
    "render_error",
    "with_middleware",
]
