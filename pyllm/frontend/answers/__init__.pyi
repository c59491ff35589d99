from .answer import respond
from .answer_format import AnswerFormat, send_failure, send_json
from .idempotency import Idempotency

__all__ = [
    "AnswerFormat",
    "Idempotency",
    "respond",
    "send_failure",
    "send_json",
]
