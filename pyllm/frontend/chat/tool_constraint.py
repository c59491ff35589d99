"""Chooses the grammar and the parser of an answer for a request's tools, tool choice and format.

`tool_grammar` builds the grammars. Of the template it knows only whether it reads tools.
"""

import json
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from typing import Any

import msgspec

from pyllm.errors import RequestError
from pyllm.frontend.chat.conversation import ANY_PARAMETERS, Conversation, InputFormat, NamedTool, Tool
from pyllm.frontend.chat.custom_tool_grammar import check_definitions, input_schema
from pyllm.frontend.chat.grammar_rules import TokenId, ToolSchema
from pyllm.frontend.chat.harmony_grammar import harmony_answer
from pyllm.frontend.chat.parsers.custom_input import CustomInputs
from pyllm.frontend.chat.parsers.drafted_calls import CallSyntax
from pyllm.frontend.chat.parsers.forced import FirstCall, ForcedCall, OnlyCalls
from pyllm.frontend.chat.parsers.parsed_pieces import Parser
from pyllm.frontend.chat.parsers.parser_selection import (
    call_list_parser,
    calls_or_content_parser,
    tool_call_parser,
    tool_form,
)
from pyllm.frontend.chat.parsers.tool_parsers import LLAMA_OPENER
from pyllm.frontend.chat.tool_grammar import ANY_TEXT, Content, call_list_grammar, calls_in_text, calls_or_content
from pyllm.frontend.text.json_schemas import Ignore, enforced_schema, warn_once
from pyllm.frontend.text.structured_outputs import grammar_text
from pyllm.parameters.structured_outputs_params import StructuredOutputsParams

# Keywords whose schema is more than the properties of one object, or that change how its text is written.
_OTHER_FORMS = ("$ref", "allOf", "anyOf", "const", "enum", "not", "oneOf", "patternProperties", "x-guidance")
_CALL_KEYS = frozenset({"name", "parameters", "arguments"})


class ToolConstraint:
    """The grammar and the parser of an answer that may call tools. `kind` is the model's call format.

    `content` constrains an answer without calls; a required call takes precedence. Where the format has no grammar of
    optional calls, they are free, and a format beside them has no effect.
    """

    def __init__(self, conversation: Conversation, content: StructuredOutputsParams | None, kind: str) -> None:
        self._conversation = conversation
        self._choice = conversation.tool_choice
        self._kind = kind
        self._form = None if kind == "none" else tool_form(kind)
        self._style = "none" if self._form is None else self._form.style
        # A grammar of calls in Python, and of calls without a marker in free text, could not tell them from the text.
        self.drops_format = content is not None and self._style == "none" and not conversation.forces_call
        self._content = None if self.drops_format else content
        self._tools = tuple(map(self._held, conversation.tools))
        self._schemas_by_name = {tool.name: tool.schema for tool in conversation.tools}

    def check(self, reads_tools: bool, ignore: Ignore) -> None:
        """Refuse calls that could not be told from other text. `reads_tools` says whether the template lists the tools.

        `ignore` is called with each constraint that the grammar does not hold.

        Raises:
            RequestError: names the field.
        """
        if self._conversation.forces_call:
            return
        if self._kind == "none":
            text = (
                "tools with tool_choice auto need a parser for the model's calls, and --tool-call-parser is none: "
                "start the server without it, or set tool_choice to required or to one function"
            )
            raise RequestError(text, "tool_choice")
        kind = self._kind
        if self._style != "closed" and not reads_tools:
            text = (
                f"the chat template leaves tools out, and they are explained in Hermes' format only, not for {kind}: "
                "start the server with --tool-call-parser hermes, or set tool_choice to required or to one function"
            )
            raise RequestError(text, "tool_choice")
        if self.drops_format:
            text = (
                f"structured_outputs has no effect beside optional tools, as calls in the form {kind} have no grammar: "
                "leave it out, or set tool_choice to required, to one function or to none"
            )
            ignore("structured_outputs", text)
        for given, held in zip(self._conversation.tools, self._tools, strict=True):
            if given is not held:
                ignore(*_not_held(given, kind))

    def _held(self, tool: Tool) -> Tool:
        """The tool with the constraint that the grammar of optional calls holds."""
        has_grammar = tool.input_format is not None and tool.input_format.syntax != "text"
        is_free = self._style == "none" or (self._style == "bare" and self._content is None)
        if self._conversation.forces_call or not (
            (is_free and tool.is_constrained) or (self._style == "tagged" and has_grammar)
        ):
            return tool
        return msgspec.structs.replace(tool, strict=False, input_format=tool.input_format and InputFormat())

    def constraint(self, token_id: TokenId, ignore: Ignore = warn_once) -> StructuredOutputsParams | None:
        """The constraint on the answer, or None. `ignore` is called with each keyword that it cannot enforce.

        Raises:
            RequestError: a schema, a definition or the content's format cannot be used.
        """
        tools, parallel = self._tools, self._conversation.parallel_tool_calls
        if self._style == "harmony":
            return self._harmony(token_id, ignore)
        if isinstance(self._choice, NamedTool):
            return _whole_call(self._chosen(self._choice), ignore)
        check_definitions([given.definition for tool in tools if (given := tool.input_format)])
        if self._choice == "required":
            return StructuredOutputsParams(grammar=call_list_grammar(_schemas(tools, ignore), parallel))
        if self._content is not None:
            content = Content(grammar_text(self._content, ignore), self._has_bare_calls)
            schemas = _schemas(tools, ignore)
            return StructuredOutputsParams(grammar=calls_or_content(self._kind, schemas, parallel, content, token_id))
        if not any(tool.is_constrained for tool in tools):
            return None
        schemas = _schemas(tools, ignore, has_free=True)
        return StructuredOutputsParams(grammar=calls_in_text(self._kind, schemas, parallel, token_id))

    def parser(self) -> Parser | None:
        """A new parser for the text of one sample, or None if all of it is content."""
        if isinstance(self._choice, NamedTool) and self._style != "harmony":
            return ForcedCall(self._choice.name, self._chosen(self._choice).input_format is not None)
        tools = self._conversation.tools
        parser: Parser | None
        if self._choice == "required" and self._style != "harmony":
            parser = OnlyCalls(call_list_parser())
        elif self._content is None or self._style == "harmony":
            parser = tool_call_parser(self._kind, self._schemas_by_name)
        else:
            bare_names = list(self._schemas_by_name) if self._has_bare_calls else []
            parser = calls_or_content_parser(self._kind, bare_names, self._schemas_by_name)
        if parser is not None and not self._conversation.forces_call and not self._conversation.parallel_tool_calls:
            parser = FirstCall(parser)
        custom = [tool.name for tool in tools if tool.input_format is not None]
        return CustomInputs(parser, custom) if custom and parser is not None else parser

    def call_syntax(self) -> CallSyntax | None:
        """The syntax of calls that the model may write among other text, if they have markers."""
        form = self._form
        if self._conversation.forces_call or self._content is not None or form is None or not form.markers:
            return None
        return CallSyntax(form.markers, partial(form.make_parser, self._schemas_by_name))

    def _harmony(self, token_id: TokenId, ignore: Ignore) -> StructuredOutputsParams | None:
        """The constraint in Harmony's channels, where even a forced call follows the model's reasoning."""
        tools, choice = self._conversation.tools, self._choice
        if isinstance(choice, NamedTool):
            tools = (self._chosen(choice),)
        forced = self._conversation.forces_call
        check_definitions([given.definition for tool in tools if (given := tool.input_format)])
        if not forced and self._content is None and not any(tool.is_constrained for tool in tools):
            return None
        content = None if self._content is None else grammar_text(self._content, ignore)
        schemas = _schemas(tools, ignore, has_free=not forced and content is None)
        grammar = harmony_answer(schemas, content, forced, token_id)
        return StructuredOutputsParams(grammar=grammar)

    def _chosen(self, choice: NamedTool) -> Tool:
        return next(tool for tool in self._conversation.tools if tool.name == choice.name)

    @cached_property
    def _has_bare_calls(self) -> bool:
        """Whether Llama's calls may come without the marker.

        Content that begins like a call is read as one, and need not follow the tool's schema. Where that is possible,
        calls need the marker. The result is kept: a schema may take long to read, and each sample's parser must agree
        with the grammar.
        """
        content = self._content
        if self._style != "bare" or content is None:
            return False
        if content.choice is not None:
            return not any(str(choice).startswith(LLAMA_OPENER) for choice in content.choice)
        return _begins_unlike_calls(content.json)


def _not_held(tool: Tool, kind: str) -> tuple[str, str]:
    """The field that has no effect, and the message that says why."""
    demand = "demand a call in tool_choice"
    if tool.input_format is None:
        text = f"strict of {tool.name!r} has no effect, as optional calls in the form {kind} are free"
        return "tools.strict", f"tools: {text}; leave it out, or {demand}"
    text = f"the grammar of {tool.name!r} has no effect on optional calls in the form {kind}"
    return "tools.format", f"tools: {text}; leave the format out, or {demand}"


def _whole_call(tool: Tool, ignore: Ignore) -> StructuredOutputsParams:
    """The constraint on a text that is one call's arguments or input, and nothing else."""
    given = tool.input_format
    if given is None:
        return StructuredOutputsParams(json=_enforced(tool, ignore))
    if given.syntax == "regex":
        return StructuredOutputsParams(regex=given.definition)
    return StructuredOutputsParams(grammar=given.definition if given.syntax == "lark" else ANY_TEXT)


def _schemas(tools: Iterable[Tool], ignore: Ignore, has_free: bool = False) -> Iterator[ToolSchema]:
    """The schema of each tool's arguments; where `has_free`, those of unconstrained tools may be any."""
    for tool in tools:
        given = tool.input_format
        if has_free and given is None and not tool.is_constrained:
            yield tool.name, ANY_PARAMETERS
        elif given is None or given.syntax == "text":
            yield tool.name, _enforced(tool, ignore)
        else:
            yield tool.name, input_schema(given)


def _enforced(tool: Tool, ignore: Ignore) -> dict[str, Any]:
    """The part of a tool's schema that a grammar enforces."""
    try:
        return enforced_schema(tool.schema, f"tools.{tool.name}", ignore)
    except RequestError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"tools: the parameters of {tool.name!r} are not a JSON schema: {error}", "tools") from None


def _begins_unlike_calls(schema: Any) -> bool:
    """Whether no text of a schema begins with a name followed by arguments; False if in doubt.

    Properties are written in the schema's order, followed by those that it does not name.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            return False  # The error is raised where the schema is used.
    if not isinstance(schema, dict) or schema.get("type") != "object" or any(key in schema for key in _OTHER_FORMS):
        return False
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    if "name" in properties and not _CALL_KEYS.isdisjoint(properties.keys() - {"name"}):
        return False
    has_others = any(name in properties and name not in _CALL_KEYS for name in required if isinstance(name, str))
    return has_others or schema.get("additionalProperties") is False
