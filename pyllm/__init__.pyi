from .client.client import EngineClient
from .client.embedding import (
    ClassificationOutput,
    ClassificationRequestOutput,
    Embedding,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from .engine.async_engine import AsyncEngine, AsyncLLMEngine
from .engine.engine_args import AsyncEngineArgs, EngineArgs, FlexibleArgumentParser
from .engine.llm import LLM
from .engine.llm_engine import LLMEngine
from .engine.prompts import Rendering, TextPrompt, TokensPrompt
from .frontend.observability.metrics_snapshot import Counter, Gauge, Histogram, Metric
from .frontend.observability.summary import Percentiles, Summary
from .frontend.text.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from .frontend.text.model_tokenizer import ModelTokenizer
from .frontend.text.outputs import CompletionOutput, RequestOutput
from .frontend.text.structured_outputs import resolve_constraint
from .parameters.lora_request import LoRARequest
from .parameters.sampling_params import RequestOutputKind, SamplingParams
from .parameters.scheduling_params import SchedulingParams
from .parameters.structured_outputs_params import ResolvedConstraint, StructuredOutputsParams
from .parameters.vllm_parameters import PoolingParams

__all__ = [
    "LLM",
    "AsyncEngine",
    "AsyncEngineArgs",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ClassificationOutput",
    "ClassificationRequestOutput",
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
    "LoRARequest",
    "Metric",
    "ModelTokenizer",
    "Percentiles",
    "PoolingParams",
    "Rendering",
    "RequestOutput",
    "RequestOutputKind",
    "ResolvedConstraint",
    "SamplingParams",
    "SchedulingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "Summary",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
    "resolve_constraint",
]

__version__: str
