from .answer_reading import RequestRecord
from .bench_defaults import (
    BACKEND,
    BACKENDS,
    BURSTINESS,
    INPUT_TOKENS,
    METRICS,
    OUTPUT_TOKENS,
    PERCENTILES,
    REPORTED_METRICS,
    REQUEST_RATE,
    TARGETS,
    PromptSet,
    Ramp,
)
from .compare_benchmark import run_compare
from .endpoint import Endpoint
from .load_run import LoadResult, Timed, run_load
from .offline_benchmarks import run_latency, run_throughput
from .prompt_sets import WORDS, Prompt, PromptSource, warm_up_prompts
from .request_metrics import Figures, Selection, summarise
from .serve_benchmark import run_serve

__all__ = [
    "BACKEND",
    "BACKENDS",
    "BURSTINESS",
    "INPUT_TOKENS",
    "METRICS",
    "OUTPUT_TOKENS",
    "PERCENTILES",
    "REPORTED_METRICS",
    "REQUEST_RATE",
    "TARGETS",
    "WORDS",
    "Endpoint",
    "Figures",
    "LoadResult",
    "Prompt",
    "PromptSet",
    "PromptSource",
    "Ramp",
    "RequestRecord",
    "Selection",
    "Timed",
    "run_compare",
    "run_latency",
    "run_load",
    "run_serve",
    "run_throughput",
    "summarise",
    "warm_up_prompts",
]
