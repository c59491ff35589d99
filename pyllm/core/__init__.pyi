from .policy_plugins import find_policy
from .recording import check_recording_path
from .replay import replay_file

__all__ = [
    "check_recording_path",
    "find_policy",
    "replay_file",
]
