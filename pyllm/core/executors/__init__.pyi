from .executor import Executor
from .forked_workers import ForkedWorkers
from .host_inventory import HostInventory, whole_blocks
from .inline import InlineExecutor
from .multiprocess import ProcessExecutor
from .ray_workers import RayWorkers

__all__ = [
    "Executor",
    "ForkedWorkers",
    "HostInventory",
    "InlineExecutor",
    "ProcessExecutor",
    "RayWorkers",
    "whole_blocks",
]
