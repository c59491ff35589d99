"""pyllm: an inference engine for large language models, made of actors.

The names below are loaded on first use, so that `import pyllm` costs neither torch nor a web framework.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyllm.engine import AsyncEngine
    from pyllm.frontend.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
    from pyllm.frontend.client import EngineClient
    from pyllm.frontend.embedding import Embedding, EmbeddingOutput, EmbeddingRequestOutput
    from pyllm.frontend.outputs import CompletionOutput, RequestOutput
    from pyllm.llm import LLM
    from pyllm.llm_engine import LLMEngine
    from pyllm.sampling_params import SamplingParams, StructuredOutputsParams
    from pyllm.scheduling_params import SchedulingParams

__version__ = "0.1.0"

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
    "SamplingParams",
    "SchedulingParams",
    "StructuredOutputsParams",
    "__version__",
]

_HOMES = {
    "LLM": "pyllm.llm",
    "AsyncEngine": "pyllm.engine",
    "BeamSearchOutput": "pyllm.frontend.beam_search",
    "BeamSearchParams": "pyllm.frontend.beam_search",
    "BeamSearchSequence": "pyllm.frontend.beam_search",
    "CompletionOutput": "pyllm.frontend.outputs",
    "Embedding": "pyllm.frontend.embedding",
    "EmbeddingOutput": "pyllm.frontend.embedding",
    "EmbeddingRequestOutput": "pyllm.frontend.embedding",
    "EngineClient": "pyllm.frontend.client",
    "LLMEngine": "pyllm.llm_engine",
    "RequestOutput": "pyllm.frontend.outputs",
    "SamplingParams": "pyllm.sampling_params",
    "SchedulingParams": "pyllm.scheduling_params",
    "StructuredOutputsParams": "pyllm.sampling_params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pyllm' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
