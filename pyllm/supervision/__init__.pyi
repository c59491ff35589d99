from .burst_logger import BurstLogger
from .child_process import ChildProcess, StartedChild, end, reap, start_child
from .flight_recorder import CrashRecord, FlightRecorder, config_json, list_records, resolve_folder
from .json_log import JsonFormatter, is_json
from .log_level import LOG_LEVELS, changed_log_level, current_log_level, set_log_level
from .memory import Memory, host_memory, is_out_of_memory, return_freed_memory
from .memory_pressure import MemoryPressure
from .parent_link import (
    ORPHANED_EXIT_CODE,
    OUT_OF_MEMORY_EXIT_CODE,
    SPARE_TITLE,
    ParentLink,
    attach,
    await_configuration,
    die_with_parent,
    keep_exit_codes,
)
from .process_handle import PidfdHandle, ProcessHandle, RemoteHandle, child_handle
from .process_samples import ProcessSample, ProcessSampler, Samples, load_nvml
from .restart_budget import WINDOW, RestartBudget
from .restart_counts import all_restarted, with_pids
from .server_processes import STOP_GRACE, last_of, supervise
from .start_progress import can_redraw, show_progress
from .step_trace import StepTrace
from .supervised_process import ProcessLimits, SupervisedProcess, start_state

__all__ = [
    "LOG_LEVELS",
    "ORPHANED_EXIT_CODE",
    "OUT_OF_MEMORY_EXIT_CODE",
    "SPARE_TITLE",
    "STOP_GRACE",
    "WINDOW",
    "BurstLogger",
    "ChildProcess",
    "CrashRecord",
    "FlightRecorder",
    "JsonFormatter",
    "Memory",
    "MemoryPressure",
    "ParentLink",
    "PidfdHandle",
    "ProcessHandle",
    "ProcessLimits",
    "ProcessSample",
    "ProcessSampler",
    "RemoteHandle",
    "RestartBudget",
    "Samples",
    "StartedChild",
    "StepTrace",
    "SupervisedProcess",
    "all_restarted",
    "attach",
    "await_configuration",
    "can_redraw",
    "changed_log_level",
    "child_handle",
    "config_json",
    "current_log_level",
    "die_with_parent",
    "end",
    "host_memory",
    "is_json",
    "is_out_of_memory",
    "keep_exit_codes",
    "last_of",
    "list_records",
    "load_nvml",
    "reap",
    "resolve_folder",
    "return_freed_memory",
    "set_log_level",
    "show_progress",
    "start_child",
    "start_state",
    "supervise",
    "with_pids",
]
