from .chat_completions import chat_route
from .common_fields import EngineRequest
from .completions import completions_route
from .embeddings import embeddings_route
from .error_format import ERROR_RESPONSES, LOOKUP_ERROR_RESPONSES, error_response
from .invocations import invocations_route
from .logprobs import chat_logprobs
from .model_list import models_routes
from .parameters import (
    SAMPLING_FIELDS,
    constraint_names,
    given_fields,
    num_top_logprobs,
    output_limit,
    own_constraint,
    sample_params,
    scheduling_params,
    structured_outputs,
)
from .protocol import ChatLogprob
from .tokenization import detokenize_route, tokenize_route, tokenizer_info_route

__all__ = [
    "ERROR_RESPONSES",
    "LOOKUP_ERROR_RESPONSES",
    "SAMPLING_FIELDS",
    "ChatLogprob",
    "EngineRequest",
    "chat_logprobs",
    "chat_route",
    "completions_route",
    "constraint_names",
    "detokenize_route",
    "embeddings_route",
    "error_response",
    "given_fields",
    "invocations_route",
    "models_routes",
    "num_top_logprobs",
    "output_limit",
    "own_constraint",
    "sample_params",
    "scheduling_params",
    "structured_outputs",
    "tokenize_route",
    "tokenizer_info_route",
]
