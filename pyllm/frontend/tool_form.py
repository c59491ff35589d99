"""The form that tools give an answer, beside the one that a request asks for, and the parser of its calls.

Decides; the grammars themselves are `tool_grammar`'s. Knows no template but for whether it reads tools.
"""

import json
from typing import Any

from pyllm.errors import RequestError
from pyllm.frontend.conversation import ANY_PARAMETERS, Conversation, NamedTool, Tool
from pyllm.frontend.input_grammar import input_grammar
from pyllm.frontend.parsers.custom_input import CustomInputs
from pyllm.frontend.parsers.forced import FirstCall, ForcedCall, OnlyCalls
from pyllm.frontend.parsers.pieces import Parser
from pyllm.frontend.parsers.selection import (
    LLAMA_OPENER,
    ToolCallParser,
    call_list_parser,
    calls_or_content_parser,
    tool_call_parser,
)
from pyllm.frontend.structured_outputs import grammar_text
from pyllm.frontend.tool_grammar import (
    ANY_TEXT,
    Content,
    TokenId,
    ToolSchema,
    call_list_grammar,
    calls_in_text,
    calls_or_content,
)
from pyllm.sampling_params import StructuredOutputsParams

# What makes more of a schema than the properties of one object, or writes it in another way.
_OTHER_FORMS = ("$ref", "allOf", "anyOf", "const", "enum", "not", "oneOf", "patternProperties", "x-guidance")
_CALL_KEYS = frozenset({"name", "parameters", "arguments"})


class ToolForm:
    """What becomes of an answer that may call tools. `kind` is how the model writes calls.

    `content` is the form of an answer without any; a call that the choice of tools asks for wins over it.
    """

    def __init__(
        self, conversation: Conversation, content: StructuredOutputsParams | None, kind: ToolCallParser
    ) -> None:
        self._conversation = conversation
        self._choice = conversation.tool_choice
        self._content = content
        self._kind = kind

    def check(self, reads_tools: bool) -> None:
        """Refuse calls that could not be told from other text; `reads_tools` says whether the template does.

        Raises:
            RequestError: names the field.
        """
        if self._choice != "auto":
            return
        if self._kind == "none":
            text = (
                "tools with tool_choice auto need a parser for the model's calls, and its chat template shows none: "
                "start the server with --tool-call-parser, or set tool_choice to required or to one function"
            )
            raise RequestError(text, "tool_choice")
        kind = self._kind
        if kind != "hermes" and not reads_tools:
            text = (
                f"the chat template leaves tools out, and they are explained in Hermes' form only, not for {kind}: "
                "start the server with --tool-call-parser hermes, or set tool_choice to required or to one function"
            )
            raise RequestError(text, "tool_choice")
        kept_to = [(index, tool) for index, tool in enumerate(self._conversation.tools) if tool.is_kept_to]
        if kept_to and self._content is None and kind == "llama3_json":
            # Its calls have no marker, so that text which is none could not begin as one does.
            raise _needs_marker(*kept_to[0])

    def constraint(self, token_id: TokenId) -> StructuredOutputsParams | None:
        """What keeps the answer to its form; None for nothing.

        Raises:
            RequestError: a schema or the content's form cannot be used.
        """
        tools, parallel = self._conversation.tools, self._conversation.parallel_tool_calls
        if isinstance(self._choice, NamedTool):
            return _form_of_all(self._chosen(self._choice))
        if self._choice == "required":
            return StructuredOutputsParams(grammar=call_list_grammar(map(_schema_of, tools), parallel))
        schemas = [
            _schema_of(tool) if tool.is_kept_to or tool.input_format is not None else (tool.name, ANY_PARAMETERS)
            for tool in tools
        ]
        if self._content is not None:
            content = Content(grammar_text(self._content), self._has_bare_calls())
            return StructuredOutputsParams(grammar=calls_or_content(self._kind, schemas, parallel, content, token_id))
        if not any(tool.is_kept_to for tool in tools):
            return None
        return StructuredOutputsParams(grammar=calls_in_text(self._kind, schemas, parallel, token_id))

    def parser(self) -> Parser | None:
        """A machine for the text of one sample; None for none."""
        if isinstance(self._choice, NamedTool):
            return ForcedCall(self._choice.name, self._chosen(self._choice).input_format is not None)
        tools = self._conversation.tools
        parser: Parser | None
        if self._choice == "required":
            parser = OnlyCalls(call_list_parser())
        elif self._content is None:
            parser = tool_call_parser(self._kind)
        else:
            parser = calls_or_content_parser(self._kind, [t.name for t in tools] if self._has_bare_calls() else [])
        if parser is not None and self._choice == "auto" and not self._conversation.parallel_tool_calls:
            parser = FirstCall(parser)
        custom = [tool.name for tool in tools if tool.input_format is not None]
        return CustomInputs(parser, custom) if custom and parser is not None else parser

    def _chosen(self, choice: NamedTool) -> Tool:
        return next(tool for tool in self._conversation.tools if tool.name == choice.name)

    def _has_bare_calls(self) -> bool:
        """Whether Llama's calls may come without the marker.

        Where content may begin as one does, that is a call, which a strict one need not be: it must have the marker.
        """
        content = self._content
        if self._kind != "llama3_json" or content is None:
            return False
        if content.choice is not None:
            return not any(str(choice).startswith(LLAMA_OPENER) for choice in content.choice)
        if content.json is None and not content.json_object:
            return False
        return not any(tool.is_kept_to for tool in self._conversation.tools) or _begins_unlike_calls(content.json)


def _needs_marker(index: int, tool: Tool) -> RequestError:
    what, name, advice = "strict calls", f"tools[{index}].function.strict", "set strict to false"
    if tool.input_format is not None:
        what, name, advice = "calls with a grammar", f"tools[{index}]", "leave the grammar out"
    text = f"{name}: with tool_choice auto {what} need --tool-call-parser hermes or mistral, not llama3_json"
    return RequestError(f"{text}; {advice}, or set tool_choice to required", name)


def _form_of_all(tool: Tool) -> StructuredOutputsParams:
    """The form of a text that is one call's arguments, or its input, and nothing else."""
    form = tool.input_format
    if form is None:
        return StructuredOutputsParams(json=tool.schema)
    if form.syntax == "regex":
        return StructuredOutputsParams(regex=form.definition)
    return StructuredOutputsParams(grammar=form.definition if form.syntax == "lark" else ANY_TEXT)


def _schema_of(tool: Tool) -> ToolSchema:
    """What its arguments must be where they are written as JSON."""
    form = tool.input_format
    if form is None or form.syntax != "lark":
        return tool.name, tool.schema
    return tool.name, input_grammar(form.definition)


def _begins_unlike_calls(schema: Any) -> bool:
    """Whether no text of a schema begins with a name and then arguments; False where that is not plain to see.

    Properties come in the schema's order, and those that it does not name after these.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            return False  # The error is told when the schema is used.
    if not isinstance(schema, dict) or schema.get("type") != "object" or any(key in schema for key in _OTHER_FORMS):
        return False
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    if "name" in properties and not _CALL_KEYS.isdisjoint(properties.keys() - {"name"}):
        return False
    has_others = any(name in properties and name not in _CALL_KEYS for name in required if isinstance(name, str))
    return has_others or schema.get("additionalProperties") is False
