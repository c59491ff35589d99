"""Selects the parsers for a model's texts, by the operator's flags or by its chat template.

Forms of other packages are entry points of `pyllm.tool_parsers` and `pyllm.reasoning_parsers`.
"""

import logging
from collections.abc import Collection, Iterable
from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct

from pyllm.config.plugins import REASONING_PARSERS, TOOL_PARSERS, find_entry_point
from pyllm.errors import ConfigError
from pyllm.frontend.chat.parsers.forced import UncutCalls
from pyllm.frontend.chat.parsers.leading_calls import LeadingCalls
from pyllm.frontend.chat.parsers.marked_calls import CallList
from pyllm.frontend.chat.parsers.parsed_pieces import Parser
from pyllm.frontend.chat.parsers.reasoning_parsers import REASONING_FORMS, ReasoningForm
from pyllm.frontend.chat.parsers.tool_call_finder import MarkedCalls
from pyllm.frontend.chat.parsers.tool_parsers import LLAMA_OPENER, TOOL_FORMS, ToolForm, leading_llama_parser
from pyllm.frontend.chat.parsers.values.argument_types import Schemas

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

logger = logging.getLogger(__name__)

ToolCallParser = str  # the name of a form

_NO_SCHEMAS: Schemas = {}


class Parsers(Struct, frozen=True):
    """The names of one model's parsers; `none` where it has none.

    With `explains_tools` the template's form of calls is unknown, and tools are explained in Hermes' form instead.
    """

    tool_call: str = "none"
    reasoning: str = "none"
    explains_tools: bool = False


def parsers_of(template: str, reads_tools: bool, tool_call: str, reasoning: str) -> Parsers:
    """The parsers of a model; `auto` selects by the markers in its template.

    If the template leaves tools out, they are explained in Hermes' format. Harmony's parser reads calls and reasoning,
    so selecting it for one selects it for both.

    Raises:
        ConfigError: there is no such parser, or it cannot be loaded.
    """
    found = Parsers(
        _shown_tool_call_parser(template, reads_tools) if tool_call == "auto" else tool_call,
        shown_reasoning_parser(template) if reasoning == "auto" else reasoning,
    )
    if found.tool_call == "openai" or found.reasoning == "openai_gptoss":
        return Parsers("openai", "none" if reasoning == "none" else "openai_gptoss")
    if found.tool_call != "none":
        tool_form(found.tool_call)
    elif tool_call == "auto":
        logger.warning(
            "the chat template shows tools, but no form of calls that is known, so they are explained in Hermes' form; "
            "if the model has another one, give --tool-call-parser, one of %s",
            ", ".join(TOOL_FORMS),
        )
        found = Parsers("hermes", found.reasoning, explains_tools=True)
    if found.reasoning != "none":
        reasoning_form(found.reasoning)
    return found


@cache
def tool_form(name: str) -> ToolForm:
    """The form of this name.

    Raises:
        ConfigError: there is none, or a package offers an object of another type.
    """
    return load_tool_form(name)


def load_tool_form(name: str, offered: "Iterable[EntryPoint] | None" = None) -> ToolForm:
    """The form of this name, ours or of an `offered` package; raises as `tool_form` does."""
    entry = find_entry_point("tool parser", name, TOOL_PARSERS, TOOL_FORMS, offered)
    form = TOOL_FORMS[name] if entry is None else _loaded("tool parser", entry)
    if not isinstance(form, ToolForm):
        raise ConfigError(f"tool parser {name!r} is {form!r:.80}, not a ToolForm")
    return form


@cache
def reasoning_form(name: str) -> ReasoningForm:
    """The form of this name.

    Raises:
        ConfigError: there is none, or a package offers an object of another type.
    """
    return load_reasoning_form(name)


def load_reasoning_form(name: str, offered: "Iterable[EntryPoint] | None" = None) -> ReasoningForm:
    """The form of this name, ours or of an `offered` package; raises as `reasoning_form` does."""
    entry = find_entry_point("reasoning parser", name, REASONING_PARSERS, REASONING_FORMS, offered)
    form = REASONING_FORMS[name] if entry is None else _loaded("reasoning parser", entry)
    if not isinstance(form, ReasoningForm):
        raise ConfigError(f"reasoning parser {name!r} is {form!r:.80}, not a ReasoningForm")
    if not form.in_channels and not (form.openings and form.closings and all([*form.openings, *form.closings])):
        raise ConfigError(f"reasoning parser {name!r} lacks a marker: it needs an opening and a closing")
    return form


def shown_reasoning_parser(template: str) -> str:
    """The name of the first form that a template shows, or `none`."""
    forms = REASONING_FORMS.items()
    return next((name for name, form in forms if any(sign in template for sign in form.signs)), "none")


def tool_call_parser(kind: str, schemas: Schemas = _NO_SCHEMAS) -> Parser | None:
    """A machine for one sample's text; None for none. `schemas` are those of the tools, by name."""
    return None if kind == "none" else tool_form(kind).make_parser(schemas)


def calls_or_content_parser(kind: str, bare_names: Collection[str], schemas: Schemas = _NO_SCHEMAS) -> Parser:
    """A machine for a text that is calls in this format or content, as its beginning shows.

    In Llama 3's format calls of `bare_names` may come without the marker. A grammar writes these, with the name before
    the arguments.
    """
    form = tool_form(kind)
    if form.style == "bare" and bare_names:
        return LeadingCalls(leading_llama_parser(bare_names), (form.marker, LLAMA_OPENER))
    if form.style == "harmony":
        return form.make_parser(schemas)
    return LeadingCalls(UncutCalls(form.make_parser(schemas)), (form.marker,))


def call_list_parser() -> Parser:
    """A machine for a text that is a list of calls in brackets, and nothing else."""
    return MarkedCalls([], lambda writer: CallList(writer, "brackets"), opener="[")


def _loaded(kind: str, entry: "EntryPoint") -> object:
    try:
        return entry.load()
    except Exception as error:
        raise ConfigError(f"{kind} {entry.name!r} ({entry.value}) cannot be imported: {error}") from error


def _shown_tool_call_parser(template: str, reads_tools: bool) -> str:
    if not reads_tools:
        return "hermes"
    return next((name for name, form in TOOL_FORMS.items() if _is_of(form, template)), "none")


def _is_of(form: ToolForm, template: str) -> bool:
    return any(all(part in template for part in sign) for sign in form.signs)
