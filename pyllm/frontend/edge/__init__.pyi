from .answer_headers import AnswerHeaders
from .error_answer import render_error
from .gateway import Gateway

__all__ = [
    "AnswerHeaders",
    "Gateway",
    "render_error",
]
