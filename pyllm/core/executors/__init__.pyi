from .executor import Executor
from .inline import InlineExecutor
from .multiprocess import ProcessExecutor
from .ray_workers import RayWorkers

__all__ = [
    "Executor",
    "InlineExecutor",
    "ProcessExecutor",
    "RayWorkers",
]
