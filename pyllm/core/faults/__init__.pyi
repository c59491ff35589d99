from .crash import Crash, crash_report
from .isolation_reporter import IsolationReporter
from .quarantine import Quarantine, RequestKey
from .recovery import Recovery
from .stalls import StallWatch

__all__ = [
    "Crash",
    "IsolationReporter",
    "Quarantine",
    "Recovery",
    "RequestKey",
    "StallWatch",
    "crash_report",
]
