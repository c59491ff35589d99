from .custom_input import CustomInputs
from .forced import FirstCall, ForcedCall, OnlyCalls
from .parsed_pieces import Content, ParsedText, Parser, Piece, Reasoning, ToolArguments, ToolCall, ToolCallBegin, folded
from .parser_selection import (
    HERMES_CLOSING,
    HERMES_OPENING,
    LLAMA_OPENER,
    MARKERS,
    MISTRAL_ARGUMENTS,
    ToolCallParser,
    call_list_parser,
    calls_or_content_parser,
    parsers_of,
    tool_call_parser,
)
from .sample_parser import SampleParser
from .think import CLOSING, OPENING

__all__ = [
    "CLOSING",
    "HERMES_CLOSING",
    "HERMES_OPENING",
    "LLAMA_OPENER",
    "MARKERS",
    "MISTRAL_ARGUMENTS",
    "OPENING",
    "Content",
    "CustomInputs",
    "FirstCall",
    "ForcedCall",
    "OnlyCalls",
    "ParsedText",
    "Parser",
    "Piece",
    "Reasoning",
    "SampleParser",
    "ToolArguments",
    "ToolCall",
    "ToolCallBegin",
    "ToolCallParser",
    "call_list_parser",
    "calls_or_content_parser",
    "folded",
    "parsers_of",
    "tool_call_parser",
]
