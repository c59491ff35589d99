from .admission_control import admit, charge
from .embedding_batch import EmbeddingBatch
from .generation import Generation, TokenCounts, num_choices
from .json_request import JsonRequest, body_type
from .request_context import (
    ADJUSTED_MESSAGES_HEADER,
    CONTEXT,
    MAX_TOKENS_HEADER,
    REQUEST_ID,
    RequestContext,
    checked_tenant,
    context_in,
    context_of,
    is_request_id,
)
from .scheduling import least_timeout, scheduling_from
from .server_cores import CoreStatus, ServerCores
from .server_state import ServerState, check_model
from .serving import begin, generate, generate_chat

__all__ = [
    "ADJUSTED_MESSAGES_HEADER",
    "CONTEXT",
    "MAX_TOKENS_HEADER",
    "REQUEST_ID",
    "CoreStatus",
    "EmbeddingBatch",
    "Generation",
    "JsonRequest",
    "RequestContext",
    "ServerCores",
    "ServerState",
    "TokenCounts",
    "admit",
    "begin",
    "body_type",
    "charge",
    "check_model",
    "checked_tenant",
    "context_in",
    "context_of",
    "generate",
    "generate_chat",
    "is_request_id",
    "least_timeout",
    "num_choices",
    "scheduling_from",
]
