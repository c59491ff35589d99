"""Turns a conversation into a prompt, sampling parameters with the constraint of its tools, and the answer's parser."""

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import Any

import msgspec

from pyllm.client.submission import refuse_prompt
from pyllm.config.server_settings import RESERVED_TEMPLATE_VARIABLES, ServerConfig
from pyllm.errors import ConfigError, RequestError, TemplateRefusalError
from pyllm.frontend.chat.conversation import Conversation, Prepared, check_tools
from pyllm.frontend.chat.harmony_grammar import harmony_answer
from pyllm.frontend.chat.message_shapes import Shaped, plainest, shaped
from pyllm.frontend.chat.parsers.harmony import HARMONY_STOPS, HarmonyParser
from pyllm.frontend.chat.parsers.parser_selection import parsers_of, reasoning_form
from pyllm.frontend.chat.parsers.reasoning_forms import THINK
from pyllm.frontend.chat.parsers.sample_parser import SampleParser
from pyllm.frontend.chat.template_traits import TemplateTraits, template_traits
from pyllm.frontend.chat.tool_constraint import ToolConstraint
from pyllm.frontend.chat.tool_grammar import after_reasoning
from pyllm.frontend.http.ignored_fields import Ignore
from pyllm.frontend.text.prompt_encoder import PromptEncoder, RefusePrompt
from pyllm.frontend.text.sampling_texts import resolve_texts_aside
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.sampling_params import SamplingParams
from pyllm.structured_outputs_params import ResolvedConstraint, StructuredOutputsParams

logger = logging.getLogger(__name__)

# More tokens than the end of a prompt has after the opening of reasoning: it is the last there is, but for whitespace.
_TAIL_TOKENS = 16


class ChatPreprocessor:
    """Prepares conversations for one model, as the server's flags say. `template` is None for a model that has none."""

    def __init__(
        self,
        prompts: PromptEncoder,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        server: ServerConfig,
    ) -> None:
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._template = template
        self._trusts_templates = server.trust_request_chat_template
        self._default_variables = server.default_chat_template_kwargs
        if template is not None:
            _probe(template)
        source = "" if template is None else template.for_tools(True).source
        kinds = server.tool_call_parser, server.reasoning_parser
        self._parsers = parsers_of(source, _shows_tools(template), *kinds)
        self._explains_tools = kinds[0] == "auto" and self._parsers.tool_call == "none"
        if self._explains_tools:
            # In the template's own words the model would call in a form that nobody here reads.
            self._parsers = msgspec.structs.replace(self._parsers, tool_call="hermes")
        self._in_channels = self._parsers.tool_call == "openai"  # Harmony
        self._form = reasoning_form(self._parsers.reasoning) if self.has_reasoning else THINK

    @property
    def has_reasoning(self) -> bool:
        """Whether a reasoning parser is on."""
        return self._parsers.reasoning != "none"

    def tool_call_id(self, request_id: str, choice: int, index: int) -> str:
        """A name for one call, the same whenever its request is run again; Mistral's templates want nine letters."""
        digest = hashlib.sha256(f"{request_id}/{choice}/{index}".encode()).hexdigest()
        return digest[:9] if self._parsers.tool_call == "mistral" else f"call_{digest[:24]}"

    def template_reads(self, variable: str) -> bool:
        """Whether the model's template looks at a variable."""
        return self._template is not None and variable in self._template.variables

    async def encode(self, conversation: Conversation, ignore: Ignore) -> Sequence[int]:
        """The prompt alone, however long it is.

        Raises:
            RequestError: a field is not honoured, or the template refuses the conversation.
        """
        check_tools(conversation)
        return (await self._encode(conversation, await self._template_of(conversation), None, ignore))[0]

    async def prepare(self, conversation: Conversation, params: SamplingParams, ignore: Ignore) -> Prepared:
        """The prompt, the parameters with what tools ask of them, texts resolved, and the parser of the answer.

        `ignore` hears of what has no effect on this model.

        Where a parser runs, the text keeps special tokens, since markers may be some.

        Raises:
            RequestError: a field is not honoured, the template refuses the conversation, or a constraint is invalid.
            RequestTooLargeError: the rendered text certainly cannot fit the context.
        """
        check_tools(conversation)
        template = await self._template_of(conversation)
        calls = bool(conversation.tools) and conversation.tool_choice != "none"
        tool_constraint = (
            ToolConstraint(conversation, params.structured_outputs, self._parsers.tool_call) if calls else None
        )
        if tool_constraint is not None:
            tool_constraint.check(self._traits(template, True).tools, ignore)
            if tool_constraint.drops_format:
                params = msgspec.structs.replace(params, structured_outputs=None)
            constraint = await asyncio.to_thread(tool_constraint.constraint, self._tokenizer.added_token_id, ignore)
            params = params if constraint is None else _with_constraint(params, constraint)
        params = await resolve_texts_aside(params, self._tokenizer, ignore)
        too_long = refuse_prompt if conversation.truncation is None else None
        prompt, adjusted = await self._encode(conversation, template, too_long, ignore)
        opened = None
        if self._in_channels:
            opened = False
            params = self._in_harmony(params, conversation, has_grammar=tool_constraint is not None)
        elif self.has_reasoning:
            opened = self._opens_reasoning(conversation, prompt)
            params = self._after_reasoning(params, opened)
        separate = conversation.separate_reasoning and self.has_reasoning
        if tool_constraint is None and not self._in_channels and (opened is None or not separate):
            return Prepared([prompt], params, adjusted=adjusted)

        def make_parser() -> SampleParser:
            parser = None if tool_constraint is None else tool_constraint.parser()
            if parser is None and self._in_channels:
                parser = HarmonyParser(calls=False)
            decoder = partial(self._tokenizer.text_decoder, prompt, False)
            calls = None if tool_constraint is None else tool_constraint.call_form()
            return SampleParser(parser, decoder, opened, separate, self._form, calls=calls)

        return Prepared([prompt], msgspec.structs.replace(params, skip_special_tokens=False), make_parser, adjusted)

    async def _encode(
        self, conversation: Conversation, template: ChatTemplate | None, too_long: RefusePrompt | None, ignore: Ignore
    ) -> tuple[Sequence[int], tuple[str, ...]]:
        """The prompt, and what was adjusted for it."""
        # A model that may call nothing is shown no tools.
        tools = [] if conversation.tool_choice == "none" else [tool.for_template() for tool in conversation.tools]
        template = template and template.for_tools(tools)
        known = frozenset[str]() if template is None else template.variables
        defaults = {name: value for name, value in self._default_variables.items() if name in known}
        variables = defaults | _variables(conversation, known, self.has_reasoning, ignore)
        traits = self._traits(template, bool(tools))
        no_tools: list[Any] | None = None if self._traits(template, False).no_tools else []
        try:
            shape = shaped(conversation.messages, tools, traits, self._parsers.tool_call)
        except (RecursionError, ValueError) as error:
            raise RequestError(f"tools cannot be written as JSON: {error}", "tools") from None

        async def encode(shape: Shaped, variables: Mapping[str, Any]) -> Sequence[int]:
            shown = shape.tools or no_tools
            return await self._prompts.encode_chat(
                shape.messages,
                conversation.add_generation_prompt,
                conversation.continue_final_message,
                conversation.add_special_tokens,
                variables=variables if shown is None else {**variables, "tools": shown},
                template=template,
                too_long=too_long,
            )

        try:
            tokens = await encode(shape, variables)
        except TemplateRefusalError as refusal:
            # A template may know other efforts, and a shape that no probe has.
            hints = {name: value for name, value in variables.items() if name != "reasoning_effort"}
            try:
                if len(hints) < len(variables):
                    tokens = await encode(shape, hints)
                    ignore("reasoning_effort", f"reasoning_effort has no effect: {refusal}")
                else:
                    shape = plainest(conversation.messages, tools, traits)
                    tokens = await encode(shape, variables)
            except TemplateRefusalError:
                raise refusal from None
        if shape.adjusted:
            logger.debug("messages were adjusted, as the chat template lacks: %s", ", ".join(shape.adjusted))
        return tokens if conversation.truncation is None else conversation.truncation.kept(tokens), shape.adjusted

    def _traits(self, template: ChatTemplate | None, with_tools: bool) -> TemplateTraits:
        if template is None:
            return TemplateTraits()
        template = template.for_tools(with_tools)
        if not self._explains_tools:
            return template_traits(template, with_tools)
        without = template_traits(template, False)
        return msgspec.structs.replace(without, tools=False, tool_calls=False, tool_results=False)

    async def _template_of(self, conversation: Conversation) -> ChatTemplate | None:
        source = conversation.chat_template
        if source is None:
            return self._template
        if not self._trusts_templates:
            text = "chat_template is refused in requests unless the server runs with --trust-request-chat-template"
            raise RequestError(text, "chat_template")
        try:
            return await asyncio.to_thread(_probed, source, self._template)
        except ConfigError as error:
            raise RequestError(str(error), "chat_template") from None

    def _after_reasoning(self, params: SamplingParams, opened: bool) -> SamplingParams:
        if params.structured_outputs is None:
            return params
        assert params.structured_outputs.grammar is not None
        grammar = params.structured_outputs.grammar
        grammar = after_reasoning(grammar, opened, self._tokenizer.added_token_id, self._form)
        return msgspec.structs.replace(params, structured_outputs=ResolvedConstraint(grammar=grammar))

    def _in_harmony(self, params: SamplingParams, conversation: Conversation, has_grammar: bool) -> SamplingParams:
        """A format is that of the final message; a turn ends with a call, whatever ends the model's texts."""
        token_ids = [token for stop in HARMONY_STOPS if (token := self._tokenizer.added_token_id(stop)) is not None]
        if not params.ignore_eos:
            stops = dict.fromkeys([*(params.stop_token_ids or ()), *token_ids])
            params = msgspec.structs.replace(params, stop_token_ids=tuple(stops))
        if params.structured_outputs is None or has_grammar or conversation.continue_final_message:
            return params
        assert params.structured_outputs.grammar is not None
        grammar = params.structured_outputs.grammar
        grammar = harmony_answer([], grammar, False, self._tokenizer.added_token_id)
        return msgspec.structs.replace(params, structured_outputs=ResolvedConstraint(grammar=grammar))

    def _opens_reasoning(self, conversation: Conversation, prompt: Sequence[int]) -> bool:
        """Whether the model goes on within reasoning: it is not looked for in what others wrote."""
        openings, closings = self._form.openings, self._form.closings
        if conversation.continue_final_message:
            last = conversation.messages[-1]["content"]
            return bool(max(map(last.rfind, openings)) > max(map(last.rfind, closings)))
        return self._tokenizer.decode(prompt[-_TAIL_TOKENS:], False).rstrip().endswith(openings)


def _probed(source: str, model: ChatTemplate | None) -> ChatTemplate:
    """The template of a request, whose traits are known then."""
    template = ChatTemplate.of_request(source, model)
    _probe(template)
    return template


def _probe(template: ChatTemplate) -> None:
    """Find its traits now, so that no request waits for it."""
    for rendered in (template, template.for_tools(True)):
        for with_tools in (False, True):
            template_traits(rendered, with_tools)


def _shows_tools(template: ChatTemplate | None) -> bool:
    return template is not None and template_traits(template.for_tools(True), True).tools


def _with_constraint(params: SamplingParams, constraint: StructuredOutputsParams) -> SamplingParams:
    try:
        return msgspec.structs.replace(params, structured_outputs=constraint)
    except RequestError as error:
        field = "tool_choice" if error.parameter == "structured_outputs" else error.parameter
        raise RequestError(f"{error} (calls that must follow a schema use structured outputs)", field) from None


def _variables(conversation: Conversation, known: Set[str], has_reasoning: bool, ignore: Ignore) -> dict[str, Any]:
    """What the template, which looks at the `known` variables, is given beside the messages.

    Documents that it does not look at are refused, as the answer would know nothing of them; other variables are hints.
    """
    fields = {"reasoning_effort": conversation.reasoning_effort, "documents": conversation.documents or None}
    variables: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    if variables.get("reasoning_effort") == "none" and "reasoning_effort" not in known:
        if "enable_thinking" in known:
            del variables["reasoning_effort"]
            variables["enable_thinking"] = False
        elif not has_reasoning:
            del variables["reasoning_effort"]  # There is none to be left out.
    for name in [name for name in variables if name not in known]:
        text = f"{name} has no effect: the model's chat template does not use it"
        if name == "documents":
            raise RequestError(text, name)
        ignore(name, text)
        del variables[name]
    for name, value in conversation.template_variables.items():
        field = f"chat_template_kwargs.{name}"
        if name in RESERVED_TEMPLATE_VARIABLES:
            raise RequestError(f"{field} is set by the server or by a field of its own; leave it out", field)
        if name in known:
            variables[name] = value
        elif name != "enable_thinking" or value is not has_reasoning:  # Else the model does as it is asked anyway.
            ignore(field, f"{field} has no effect: the model's chat template does not use it")
    return variables
