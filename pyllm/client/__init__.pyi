from .client import EngineClient
from .columns import StartTimes
from .core_connection import Condition, ConnectionCounts, CoreConnect, over_zeromq
from .cores import CoreReport
from .embedding import Embedding, EmbeddingOutput, EmbeddingRequestOutput
from .logprobs import Logprob, LogprobEntries, chosen, extended, likeliest
from .pending_calls import Done
from .placers import PlacementKind
from .prompt_tokens import PromptTokens, known_tokens
from .reports import BlockOwners, Decision, RequestReport, SampleReport, TenantReport
from .request_hasher import RequestHasher
from .streams import OutputSink
from .submission import check_dimensions, num_logprobs, refuse_input, refuse_prompt, room_for_output
from .token_reader import TokenDelta

__all__ = [
    "BlockOwners",
    "Condition",
    "ConnectionCounts",
    "CoreConnect",
    "CoreReport",
    "Decision",
    "Done",
    "Embedding",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineClient",
    "Logprob",
    "LogprobEntries",
    "OutputSink",
    "PlacementKind",
    "PromptTokens",
    "RequestHasher",
    "RequestReport",
    "SampleReport",
    "StartTimes",
    "TenantReport",
    "TokenDelta",
    "check_dimensions",
    "chosen",
    "extended",
    "known_tokens",
    "likeliest",
    "num_logprobs",
    "over_zeromq",
    "refuse_input",
    "refuse_prompt",
    "room_for_output",
]
