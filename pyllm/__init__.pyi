from .async_engine import AsyncEngine
from .client.client import EngineClient
from .client.embedding import Embedding, EmbeddingOutput, EmbeddingRequestOutput
from .frontend.text.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from .frontend.text.outputs import CompletionOutput, RequestOutput
from .frontend.text.structured_outputs import resolve_constraint
from .llm import LLM
from .llm_engine import LLMEngine
from .sampling_params import ResolvedConstraint, SamplingParams, StructuredOutputsParams
from .scheduling_params import SchedulingParams

__all__ = [
    "LLM",
    "AsyncEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "Embedding",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineClient",
    "LLMEngine",
    "RequestOutput",
    "ResolvedConstraint",
    "SamplingParams",
    "SchedulingParams",
    "StructuredOutputsParams",
    "__version__",
    "resolve_constraint",
]

__version__: str
