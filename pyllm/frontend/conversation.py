"""A conversation with tools, whichever API it came by, and what the engine is asked for it: prompt, limits, parser.

Does not know any API's shapes; only its errors name fields as OpenAI does.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from pyllm.errors import ConfigError, RequestError
from pyllm.frontend.chat_template import ChatTemplate, Message
from pyllm.frontend.parsers.forced import FirstCall, ForcedCall
from pyllm.frontend.parsers.pieces import Parser
from pyllm.frontend.parsers.sample import SampleParser
from pyllm.frontend.parsers.selection import (
    ReasoningParser,
    ToolCallParser,
    call_list_parser,
    parsers_of,
    tool_call_parser,
)
from pyllm.frontend.parsers.think import CLOSING, OPENING
from pyllm.frontend.prompts import PromptEncoder
from pyllm.frontend.sampling_texts import resolve_texts_aside
from pyllm.frontend.structured_outputs import ResolvedForm
from pyllm.frontend.tokenizer import Tokenizer
from pyllm.frontend.tool_grammar import after_reasoning, call_list_grammar, hermes_grammar
from pyllm.frontend.tool_prompt import explained
from pyllm.frontend.truncation import Truncation
from pyllm.sampling_params import SamplingParams, StructuredOutputsParams

# Variables of a template that have fields of their own in a request, or are never the request's.
RESERVED_VARIABLES = frozenset(
    {
        *("add_generation_prompt", "bos_token", "chat_template", "continue_final_message", "documents", "eos_token"),
        *("messages", "reasoning_effort", "tokenize", "tools"),
    }
)
# More tokens than the end of a prompt has after the opening of reasoning: it is the last there is, but for whitespace.
_TAIL_TOKENS = 16
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_ANY_PARAMETERS: dict[str, Any] = {"type": "object"}


class Tool(Struct, frozen=True, kw_only=True):
    """A function that the model may call. Without `parameters` it has none; `strict` calls keep to their schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """What the arguments of a call must be."""
        return _NO_PARAMETERS if self.parameters is None else {**_ANY_PARAMETERS, **self.parameters}

    def for_template(self) -> dict[str, Any]:
        """The tool as templates know it."""
        described = {} if self.description is None else {"description": self.description}
        return {"type": "function", "function": {"name": self.name, **described, "parameters": self.schema}}


class NamedTool(Struct, frozen=True):
    """The choice of one tool that must be called."""

    name: str


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class Conversation(Struct, frozen=True, kw_only=True):
    """What is said so far, what the model may call, and how the template renders it.

    Messages are as templates know them: a `role`, a `content` of text, and where they have them `tool_calls`, whose
    arguments are objects, `tool_call_id`, `name`, `reasoning` and `reasoning_content`. `template_variables` are for the
    template alone, `chat_template` is one in place of the model's. `truncation` says what a long prompt loses.
    """

    messages: Sequence[Message]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    template_variables: Mapping[str, Any] = {}
    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    truncation: Truncation | None = None


class Prepared(Struct, frozen=True):
    """What to submit. Without a `make_parser`, which makes one for each sample, text is content as it comes."""

    prompt: list[int]
    params: SamplingParams
    make_parser: Callable[[], SampleParser] | None


class ConversationSettings(Struct, frozen=True, kw_only=True):
    """What the operator says of conversations: see the flags of these names."""

    tool_call_parser: ToolCallParser | Literal["auto"] = "auto"
    reasoning_parser: ReasoningParser | Literal["auto"] = "auto"
    trust_request_chat_template: bool = False


DEFAULT_SETTINGS = ConversationSettings()


class Conversations:
    """Prepares conversations for one model. `template` is None for a model that has none."""

    def __init__(
        self,
        prompts: PromptEncoder,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        settings: ConversationSettings,
    ) -> None:
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._template = template
        self._trusts_templates = settings.trust_request_chat_template
        source = "" if template is None else template.source
        kinds = settings.tool_call_parser, settings.reasoning_parser
        self._parsers = parsers_of(source, _reads_tools(template), *kinds)

    @property
    def has_reasoning(self) -> bool:
        """Whether a reasoning parser is on."""
        return self._parsers.reasoning != "none"

    def call_id(self, request_id: str, choice: int, index: int) -> str:
        """A name for one call, the same whenever its request is run again; Mistral's templates want nine letters."""
        digest = hashlib.sha256(f"{request_id}/{choice}/{index}".encode()).hexdigest()
        return digest[:9] if self._parsers.tool_call == "mistral" else f"call_{digest[:24]}"

    def reads(self, variable: str) -> bool:
        """Whether the model's template looks at a variable."""
        return self._template is not None and variable in self._template.variables

    async def encode(self, conversation: Conversation) -> list[int]:
        """The prompt alone, however long it is.

        Raises:
            RequestError: a field is not honoured, or the template refuses the conversation.
        """
        _check_tools(conversation)
        return await self._encode(conversation, await self._template_of(conversation), refuse_long=False)

    async def prepare(self, conversation: Conversation, params: SamplingParams) -> Prepared:
        """The prompt, the parameters with what tools ask of them, texts resolved, and the parser of the answer.

        Where a parser runs, the text keeps special tokens, since markers may be some.

        Raises:
            RequestError: a field is not honoured, the template refuses the conversation, or a form is none.
            RequestTooLargeError: the rendered text certainly cannot fit the context.
        """
        _check_tools(conversation)
        template = await self._template_of(conversation)
        calls = bool(conversation.tools) and conversation.tool_choice != "none"
        if calls:
            form = await asyncio.to_thread(self._tool_form, conversation, params, _reads_tools(template))
            params = params if form is None else msgspec.structs.replace(params, structured_outputs=form)
        params = await resolve_texts_aside(params, self._tokenizer)
        prompt = await self._encode(conversation, template)
        opened = self._opens_reasoning(conversation, prompt) if self.has_reasoning else None
        if opened is not None and params.structured_outputs is not None:
            assert params.structured_outputs.grammar is not None
            grammar = after_reasoning(params.structured_outputs.grammar, opened, self._tokenizer.added_token_id)
            params = msgspec.structs.replace(params, structured_outputs=ResolvedForm(grammar=grammar))
        if not calls and opened is None:
            return Prepared(prompt, params, None)

        def make_parser() -> SampleParser:
            parser = self._call_parser(conversation) if calls else None
            return SampleParser(parser, lambda: self._tokenizer.text_decoder(prompt, False), opened)

        return Prepared(prompt, msgspec.structs.replace(params, skip_special_tokens=False), make_parser)

    async def _encode(
        self, conversation: Conversation, template: ChatTemplate | None, refuse_long: bool = True
    ) -> list[int]:
        variables = _variables(conversation, template)
        messages = conversation.messages
        # A model that is to call nothing is told of nothing.
        tools = [] if conversation.tool_choice == "none" else [tool.for_template() for tool in conversation.tools]
        if _reads_tools(template):
            variables |= {"tools": tools} if tools else {}
        elif tools or any(message["role"] == "tool" or "tool_calls" in message for message in messages):
            try:
                messages = await asyncio.to_thread(explained, messages, tools)
            except (RecursionError, ValueError) as error:
                raise RequestError(f"tools cannot be written as JSON: {error}", "tools") from None
        tokens = await self._prompts.encode_chat(
            messages,
            conversation.add_generation_prompt,
            conversation.continue_final_message,
            conversation.add_special_tokens,
            variables=variables,
            template=template,
            refuse_long=refuse_long and conversation.truncation is None,
        )
        return tokens if conversation.truncation is None else conversation.truncation.kept(tokens)

    async def _template_of(self, conversation: Conversation) -> ChatTemplate | None:
        source = conversation.chat_template
        if source is None:
            return self._template
        if not self._trusts_templates:
            text = "chat_template is refused in requests unless the server runs with --trust-request-chat-template"
            raise RequestError(text, "chat_template")
        try:
            return await asyncio.to_thread(ChatTemplate.of_request, source, self._template)
        except ConfigError as error:
            raise RequestError(str(error), "chat_template") from None

    def _tool_form(
        self, conversation: Conversation, params: SamplingParams, reads_tools: bool
    ) -> StructuredOutputsParams | None:
        """The form that the choice of tools gives the answer, if any."""
        choice = conversation.tool_choice
        if choice == "auto":
            return self._auto_form(conversation, params, reads_tools)
        if params.structured_outputs is not None:
            text = "tool_choice asks for a call, and response_format or structured_outputs for another form; drop one"
            raise RequestError(text, "tool_choice")
        if isinstance(choice, NamedTool):
            return StructuredOutputsParams(json={tool.name: tool.schema for tool in conversation.tools}[choice.name])
        schemas = [(tool.name, tool.schema) for tool in conversation.tools]
        return StructuredOutputsParams(grammar=call_list_grammar(schemas, conversation.parallel_tool_calls))

    def _auto_form(
        self, conversation: Conversation, params: SamplingParams, reads_tools: bool
    ) -> StructuredOutputsParams | None:
        parser = self._parsers.tool_call
        if parser == "none":
            text = (
                "tools with tool_choice auto need a parser for the model's calls, and its chat template shows none: "
                "start the server with --tool-call-parser, or set tool_choice to required or to one function"
            )
            raise RequestError(text, "tool_choice")
        if parser != "hermes" and not reads_tools:
            text = (
                f"the chat template leaves tools out, and they are explained in Hermes' form only, not for {parser}: "
                "start the server with --tool-call-parser hermes, or set tool_choice to required or to one function"
            )
            raise RequestError(text, "tool_choice")
        strict = next((index for index, tool in enumerate(conversation.tools) if tool.strict), None)
        if strict is None:
            return None
        name = f"tools[{strict}].function.strict"
        if parser != "hermes":
            text = f"{name}: with tool_choice auto strict calls need --tool-call-parser hermes, and it is {parser}"
            raise RequestError(f"{text}; set strict to false, or tool_choice to required", name)
        if params.structured_outputs is not None:
            text = f"{name}: strict tools and response_format or structured_outputs exclude one another; drop one"
            raise RequestError(text, name)
        schemas = [(tool.name, tool.schema if tool.strict else _ANY_PARAMETERS) for tool in conversation.tools]
        grammar = hermes_grammar(schemas, conversation.parallel_tool_calls, self._tokenizer.added_token_id)
        return StructuredOutputsParams(grammar=grammar)

    def _call_parser(self, conversation: Conversation) -> Parser | None:
        choice = conversation.tool_choice
        if isinstance(choice, NamedTool):
            return ForcedCall(choice.name)
        if choice == "required":
            return call_list_parser()
        parser = tool_call_parser(self._parsers.tool_call)
        return parser if parser is None or conversation.parallel_tool_calls else FirstCall(parser)

    def _opens_reasoning(self, conversation: Conversation, prompt: list[int]) -> bool:
        """Whether the model goes on within reasoning: it is not looked for in what others wrote."""
        if conversation.continue_final_message:
            last = conversation.messages[-1]["content"]
            return bool(last.rfind(OPENING) > last.rfind(CLOSING))
        return self._tokenizer.decode(prompt[-_TAIL_TOKENS:], False).rstrip().endswith(OPENING)


def _reads_tools(template: ChatTemplate | None) -> bool:
    return template is not None and "tools" in template.variables


def _check_tools(conversation: Conversation) -> None:
    names = set()
    for index, tool in enumerate(conversation.tools):
        if tool.name in names:
            raise RequestError(f"tools has {tool.name!r} more than once; names must differ", f"tools[{index}]")
        names.add(tool.name)
        if tool.schema.get("type") != "object":
            text = f"tools: the parameters of {tool.name!r} must be a JSON schema of type object"
            raise RequestError(text, f"tools[{index}]")
    choice = conversation.tool_choice
    if isinstance(choice, NamedTool) and choice.name not in names:
        raise RequestError(f"tool_choice names {choice.name!r}, which is not in tools", "tool_choice")
    if choice == "required" and not names:
        raise RequestError("tool_choice required needs tools", "tool_choice")


def _variables(conversation: Conversation, template: ChatTemplate | None) -> dict[str, Any]:
    """What the template is given beside the messages; refuses what it does not look at."""
    known = frozenset[str]() if template is None else template.variables
    fields = {"reasoning_effort": conversation.reasoning_effort, "documents": conversation.documents or None}
    variables = {name: value for name, value in fields.items() if value is not None}
    for name in variables:
        if name not in known:
            raise RequestError(f"{name} has no effect: the model's chat template does not look at it", name)
    for name, value in conversation.template_variables.items():
        field = f"chat_template_kwargs.{name}"
        if name in RESERVED_VARIABLES:
            raise RequestError(f"{field} is set by the server or by a field of its own; leave it out", field)
        if name not in known:
            raise RequestError(f"{field} has no effect: the model's chat template does not look at it", field)
        variables[name] = value
    return variables
