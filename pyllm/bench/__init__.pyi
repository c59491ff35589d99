from .answer_reading import RequestRecord
from .bench_command import add_bench_arguments
from .endpoint import Endpoint
from .load_run import LoadResult, Timed, run_load
from .prompt_sets import WORDS, Prompt

__all__ = [
    "WORDS",
    "Endpoint",
    "LoadResult",
    "Prompt",
    "RequestRecord",
    "Timed",
    "add_bench_arguments",
    "run_load",
]
