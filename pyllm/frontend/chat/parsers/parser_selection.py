"""Selects the parsers for a model's texts, by the operator's flags or by its chat template."""

from collections.abc import Collection
from typing import Literal

from msgspec import Struct

from pyllm.frontend.chat.parsers.forced import UncutCalls
from pyllm.frontend.chat.parsers.leading_calls import LeadingCalls
from pyllm.frontend.chat.parsers.parsed_pieces import Parser
from pyllm.frontend.chat.parsers.think import CLOSING, OPENING
from pyllm.frontend.chat.parsers.tool_call_finder import MarkedCalls
from pyllm.frontend.chat.parsers.tool_call_formats import CallList, ClosedCall, MistralCalls

ToolCallParser = Literal["none", "hermes", "llama3_json", "mistral"]
ReasoningParser = Literal["none", "think"]

HERMES_OPENING, HERMES_CLOSING = "<tool_call>", "</tool_call>"
MISTRAL_ARGUMENTS = "[ARGS]"
LLAMA_OPENER = "{"

# What comes before a call. In this order: a template that has several of them tells the model of the first.
MARKERS: dict[ToolCallParser, str] = {
    "hermes": HERMES_OPENING,
    "mistral": "[TOOL_CALLS]",
    "llama3_json": "<|python_tag|>",
}


class Parsers(Struct, frozen=True):
    """One model's."""

    tool_call: ToolCallParser = "none"
    reasoning: ReasoningParser = "none"


def parsers_of(
    template: str,
    reads_tools: bool,
    tool_call: ToolCallParser | Literal["auto"],
    reasoning: ReasoningParser | Literal["auto"],
) -> Parsers:
    """What `auto` stands for, by the markers in a template.

    To a model whose template leaves tools out they are explained in Hermes' format.
    """
    return Parsers(
        _shown_tool_call_parser(template, reads_tools) if tool_call == "auto" else tool_call,
        _shown_reasoning_parser(template) if reasoning == "auto" else reasoning,
    )


def tool_call_parser(kind: ToolCallParser) -> Parser | None:
    """A machine for one sample's text; None for none."""
    match kind:
        case "hermes":
            return MarkedCalls(MARKERS[kind], lambda index: ClosedCall(index, HERMES_CLOSING))
        case "llama3_json":
            return MarkedCalls(MARKERS[kind], lambda index: CallList(index, "semicolons"), opener=LLAMA_OPENER)
        case "mistral":
            return MarkedCalls(MARKERS[kind], MistralCalls)
        case _:
            return None


def calls_or_content_parser(kind: ToolCallParser, bare_names: Collection[str]) -> Parser:
    """A machine for a text that is calls in this format or content, as its beginning shows.

    In Llama 3's format calls of `bare_names` may come without the marker. A grammar writes these, with the name before
    the arguments.
    """
    if kind == "llama3_json" and bare_names:
        parser: Parser = MarkedCalls(
            MARKERS[kind], lambda index: CallList(index, "semicolons", bare_names), opener=LLAMA_OPENER
        )
        return LeadingCalls(parser, (MARKERS[kind], LLAMA_OPENER))
    chosen = tool_call_parser(kind)
    assert chosen is not None
    return LeadingCalls(UncutCalls(chosen), (MARKERS[kind],))


def call_list_parser() -> Parser:
    """A machine for a text that is a list of calls in brackets, and nothing else."""
    return MarkedCalls("", lambda index: CallList(index, "brackets"), opener="[")


def _shown_tool_call_parser(template: str, reads_tools: bool) -> ToolCallParser:
    if not reads_tools:
        return "hermes"
    return next((parser for parser, marker in MARKERS.items() if marker in template), "none")


def _shown_reasoning_parser(template: str) -> ReasoningParser:
    return "think" if OPENING in template or CLOSING in template else "none"
