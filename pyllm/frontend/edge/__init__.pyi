from .answer_headers import AnswerHeaders
from .error_answer import render_error
from .gateway import Gateway
from .middleware import load_middleware, with_middleware
from .request_record import RequestRecord, RouteNames

__all__ = [
    "AnswerHeaders",
    "Gateway",
    "RequestRecord",
    "RouteNames",
    "load_middleware",
    "render_error",
    "with_middleware",
]
