from .custom_input import CustomInputs
from .drafted_calls import CallSyntax
from .forced import FirstCall, ForcedCall, OnlyCalls
from .harmony import (
    HARMONY_CHANNEL,
    HARMONY_CONSTRAIN,
    HARMONY_END,
    HARMONY_MESSAGE,
    HARMONY_START,
    HARMONY_STOPS,
    HarmonyParser,
)
from .parsed_pieces import Content, ParsedText, Parser, Piece, Reasoning, ToolArguments, ToolCall, ToolCallBegin, folded
from .parser_selection import (
    call_list_parser,
    calls_or_content_parser,
    parsers_of,
    reasoning_form,
    shown_reasoning_parser,
    tool_call_parser,
    tool_form,
)
from .reasoning_forms import THINK, ReasoningForm
from .sample_parser import SampleParser
from .tool_forms import HERMES_CLOSING, HERMES_OPENING, LLAMA_OPENER, MISTRAL_ARGUMENTS, TOOL_FORMS, ToolForm
from .values.argument_tags import Tags
from .values.argument_types import types_of

__all__ = [
    "HARMONY_CHANNEL",
    "HARMONY_CONSTRAIN",
    "HARMONY_END",
    "HARMONY_MESSAGE",
    "HARMONY_START",
    "HARMONY_STOPS",
    "HERMES_CLOSING",
    "HERMES_OPENING",
    "LLAMA_OPENER",
    "MISTRAL_ARGUMENTS",
    "THINK",
    "TOOL_FORMS",
    "CallSyntax",
    "Content",
    "CustomInputs",
    "FirstCall",
    "ForcedCall",
    "HarmonyParser",
    "OnlyCalls",
    "ParsedText",
    "Parser",
    "Piece",
    "Reasoning",
    "ReasoningForm",
    "SampleParser",
    "Tags",
    "ToolArguments",
    "ToolCall",
    "ToolCallBegin",
    "ToolForm",
    "call_list_parser",
    "calls_or_content_parser",
    "folded",
    "parsers_of",
    "reasoning_form",
    "shown_reasoning_parser",
    "tool_call_parser",
    "tool_form",
    "types_of",
]
