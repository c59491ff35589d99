from .findings import Finding, find_problems, sort_findings
from .model_needs import ModelNeeds, needs_of_model
from .processor import Processor, kernel_level, read_processor
from .report import Report, as_json, as_text, print_tables
from .software import Software, read_software
from .system_limits import SystemLimits, read_limits

__all__ = [
    "Finding",
    "ModelNeeds",
    "Processor",
    "Report",
    "Software",
    "SystemLimits",
    "as_json",
    "as_text",
    "find_problems",
    "kernel_level",
    "needs_of_model",
    "print_tables",
    "read_limits",
    "read_processor",
    "read_software",
    "sort_findings",
]
