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
from .preprocessor import ChatPreprocessor
from .renderer import ChatRenderer, program_messages

__all__ = [
    "ChatPreprocessor",
    "ChatRenderer",
    "Conversation",
    "InputFormat",
    "NamedTool",
    "Prepared",
    "Tool",
    "ToolChoice",
    "call_arguments",
    "input_arguments",
    "left_out_text",
    "program_messages",
]
