from .conversation import (
    Conversation,
    InputFormat,
    NamedTool,
    Prepared,
    Tool,
    ToolChoice,
    call_arguments,
    input_arguments,
)
from .history_parts import TEXT_PARTS, HistoryPart, document_text, part_text, result_text
from .preprocessor import ChatPreprocessor
from .reasoning_markers import ReasoningMarkers
from .renderer import ChatRenderer, program_messages

__all__ = [
    "TEXT_PARTS",
    "ChatPreprocessor",
    "ChatRenderer",
    "Conversation",
    "HistoryPart",
    "InputFormat",
    "NamedTool",
    "Prepared",
    "ReasoningMarkers",
    "Tool",
    "ToolChoice",
    "call_arguments",
    "document_text",
    "input_arguments",
    "part_text",
    "program_messages",
    "result_text",
]
