from .conversation import Conversation, InputFormat, NamedTool, Prepared, Tool, ToolChoice, input_arguments
from .preprocessor import ChatPreprocessor

__all__ = [
    "ChatPreprocessor",
    "Conversation",
    "InputFormat",
    "NamedTool",
    "Prepared",
    "Tool",
    "ToolChoice",
    "input_arguments",
]
