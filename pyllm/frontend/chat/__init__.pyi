from .conversation import (
    Conversation,
    InputFormat,
    NamedTool,
    Prepared,
    Tool,
    ToolChoice,
    call_arguments,
    input_arguments,
    left_out_text,
)
from .message_shapes import shaped_for_program
from .preprocessor import ChatPreprocessor

__all__ = [
    "ChatPreprocessor",
    "Conversation",
    "InputFormat",
    "NamedTool",
    "Prepared",
    "Tool",
    "ToolChoice",
    "call_arguments",
    "input_arguments",
    "left_out_text",
    "shaped_for_program",
]
