from .answer_reading import RequestRecord
from .bench_command import add_bench_arguments
from .endpoint import Endpoint
from .load_run import LoadResult, Timed, run_load
from .prompt_sets import WORDS, Prompt, PromptSource, warm_up_prompts
from .request_metrics import Figures, Selection, summarise

__all__ = [
    "WORDS",
    "Endpoint",
    "Figures",
    "LoadResult",
    "Prompt",
    "PromptSource",
    "RequestRecord",
    "Selection",
    "Timed",
    "add_bench_arguments",
    "run_load",
    "summarise",
    "warm_up_prompts",
]
