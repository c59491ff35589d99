from .conversation import Conversation, InputFormat, NamedTool, Prepared, Tool, ToolChoice, input_arguments
from .preprocessor import ChatPreprocessor
from .tool_prompt import with_tools

__all__ = [
    "ChatPreprocessor",
    "Conversation",
    "InputFormat",
    "NamedTool",
    "Prepared",
    "Tool",
    "ToolChoice",
    "input_arguments",
    "with_tools",
]
