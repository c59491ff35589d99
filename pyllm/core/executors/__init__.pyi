from .executor import Executor
from .inline import InlineExecutor
from .multiprocess import ProcessExecutor

__all__ = [
    "Executor",
    "InlineExecutor",
    "ProcessExecutor",
]
