from .idempotency_records import last_event_id
from .local_state import LocalState
from .messages import (
    LIMIT_REASONS,
    LOST,
    QUEUE_REASONS,
    REASONS,
    Admission,
    Attached,
    Conflict,
    CoreRefusal,
    Full,
    Granted,
    Page,
    Refused,
    Remaining,
    Run,
)
from .remote_state import RemoteState, Shared, StateLostError
from .shared_state import SharedState
from .totals import Row, decode_row, encode_row

__all__ = [
    "LIMIT_REASONS",
    "LOST",
    "QUEUE_REASONS",
    "REASONS",
    "Admission",
    "Attached",
    "Conflict",
    "CoreRefusal",
    "Full",
    "Granted",
    "LocalState",
    "Page",
    "Refused",
    "Remaining",
    "RemoteState",
    "Row",
    "Run",
    "Shared",
    "SharedState",
    "StateLostError",
    "decode_row",
    "encode_row",
    "last_event_id",
]
