from .policy_plugins import find_policy
from .replay import replay_file

__all__ = [
    "find_policy",
    "replay_file",
]
