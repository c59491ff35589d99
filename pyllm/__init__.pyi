from .async_engine import AsyncEngine
from .client.client import EngineClient
from .client.embedding import Embedding, EmbeddingOutput, EmbeddingRequestOutput
from .engine_args import EngineArgs, FlexibleArgumentParser
from .frontend.observability.metrics_snapshot import Counter, Gauge, Histogram, Metric
from .frontend.observability.summary import Percentiles, Summary
from .frontend.text.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from .frontend.text.model_tokenizer import ModelTokenizer
from .frontend.text.outputs import CompletionOutput, RequestOutput
from .frontend.text.structured_outputs import resolve_constraint
from .llm import LLM
from .llm_engine import LLMEngine
from .prompts import Rendering
from .sampling_params import RequestOutputKind, SamplingParams
from .scheduling_params import SchedulingParams
from .structured_outputs_params import ResolvedConstraint, StructuredOutputsParams

__all__ = [
    "LLM",
    "AsyncEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "Counter",
    "Embedding",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "EngineClient",
    "FlexibleArgumentParser",
    "Gauge",
    "Histogram",
    "LLMEngine",
    "Metric",
    "ModelTokenizer",
    "Percentiles",
    "Rendering",
    "RequestOutput",
    "RequestOutputKind",
    "ResolvedConstraint",
    "SamplingParams",
    "SchedulingParams",
    "StructuredOutputsParams",
    "Summary",
    "__version__",
    "resolve_constraint",
]

__version__: str
