from .isolation import NUM_TOKENS, check_isolation
from .model import TransformersModel

__all__ = ["NUM_TOKENS", "TransformersModel", "check_isolation"]
