"""Which parsers a model's texts need: as the operator says, or as its chat template shows."""

from typing import Literal

from msgspec import Struct

from pyllm.frontend.parsers.bodies import CallList, ClosedCall, MistralCalls
from pyllm.frontend.parsers.marked_calls import MarkedCalls
from pyllm.frontend.parsers.pieces import Parser
from pyllm.frontend.parsers.think import CLOSING, OPENING

ToolCallParser = Literal["none", "hermes", "llama3_json", "mistral"]
ReasoningParser = Literal["none", "think"]

HERMES_OPENING, HERMES_CLOSING = "<tool_call>", "</tool_call>"
_MISTRAL_MARKER = "[TOOL_CALLS]"
_LLAMA_MARKER = "<|python_tag|>"

# In this order: a template that has several of them tells the model of the first.
_MARKERS: dict[str, ToolCallParser] = {
    HERMES_OPENING: "hermes",
    _MISTRAL_MARKER: "mistral",
    _LLAMA_MARKER: "llama3_json",
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

    To a model whose template leaves tools out they are explained in Hermes' form.
    """
    return Parsers(
        _shown_tool_call_parser(template, reads_tools) if tool_call == "auto" else tool_call,
        _shown_reasoning_parser(template) if reasoning == "auto" else reasoning,
    )


def tool_call_parser(kind: ToolCallParser) -> Parser | None:
    """A machine for one sample's text; None for none."""
    match kind:
        case "hermes":
            return MarkedCalls(HERMES_OPENING, lambda index: ClosedCall(index, HERMES_CLOSING))
        case "llama3_json":
            return MarkedCalls(_LLAMA_MARKER, lambda index: CallList(index, "semicolons"), opener="{")
        case "mistral":
            return MarkedCalls(_MISTRAL_MARKER, MistralCalls)
        case _:
            return None


def call_list_parser() -> Parser:
    """A machine for a text that is a list of calls in brackets, and nothing else."""
    return MarkedCalls("", lambda index: CallList(index, "brackets"), opener="[")


def _shown_tool_call_parser(template: str, reads_tools: bool) -> ToolCallParser:
    if not reads_tools:
        return "hermes"
    return next((parser for marker, parser in _MARKERS.items() if marker in template), "none")


def _shown_reasoning_parser(template: str) -> ReasoningParser:
    return "think" if OPENING in template or CLOSING in template else "none"
