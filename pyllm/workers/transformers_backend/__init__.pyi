from .isolation import CHECKED_TOKENS, check_isolation
from .model import TransformersModel

__all__ = ["CHECKED_TOKENS", "TransformersModel", "check_isolation"]
