from .answer_source import AnswerParameters, AnswerPiece, AnswerSource, TokenUsage
from .chat_loop import chat
from .completion import print_completion
from .markdown_blocks import MarkdownBlocks
from .source_selection import SourceRequest, is_address, select_source
from .terminal_text import open_stdin, whole
from .transcript import Transcript

__all__ = [
    "AnswerParameters",
    "AnswerPiece",
    "AnswerSource",
    "MarkdownBlocks",
    "SourceRequest",
    "TokenUsage",
    "Transcript",
    "chat",
    "is_address",
    "open_stdin",
    "print_completion",
    "select_source",
    "whole",
]
