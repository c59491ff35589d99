"""Turns a conversation into a prompt, sampling parameters with the constraint of its tools, and the answer's parser."""

import asyncio
import hashlib
from collections.abc import Sequence, Set
from functools import partial
from typing import Any

from pyllm.client.submission import refuse_prompt
from pyllm.config.server_settings import RESERVED_TEMPLATE_VARIABLES, ServerConfig
from pyllm.errors import RequestError
from pyllm.frontend.chat.conversation import Conversation, Prepared, check_tools
from pyllm.frontend.chat.harmony_grammar import harmony_answer
from pyllm.frontend.chat.parsers.harmony import HARMONY_STOPS, HarmonyParser
from pyllm.frontend.chat.parsers.parser_selection import reasoning_form
from pyllm.frontend.chat.parsers.reasoning_parsers import THINK
from pyllm.frontend.chat.parsers.sample_parser import SampleParser
from pyllm.frontend.chat.reasoning_markers import ReasoningMarkers
from pyllm.frontend.chat.renderer import ChatRenderer
from pyllm.frontend.chat.tool_constraint import ToolConstraint
from pyllm.frontend.chat.tool_grammar import after_reasoning
from pyllm.frontend.text.json_schemas import Ignore
from pyllm.frontend.text.prompt_encoder import PromptEncoder, RefusePrompt
from pyllm.frontend.text.sampling_texts import add_stop_tokens, resolve_texts_aside
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.structured_outputs_params import ResolvedConstraint, StructuredOutputsParams

# Tokens at the end of a prompt in which to look for the opening of reasoning: only whitespace may follow it.
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
        self._trusts_templates = server.trust_request_chat_template
        self._default_variables = server.default_chat_template_kwargs
        self._renderer = ChatRenderer(prompts, template, server.tool_call_parser, server.reasoning_parser)
        self._parsers = self._renderer.parsers
        self._in_channels = self._parsers.tool_call == "openai"  # Harmony
        self._form = reasoning_form(self._parsers.reasoning) if self.has_reasoning else THINK
        self.markers = ReasoningMarkers(tokenizer, self._form if self.has_reasoning else None)

    @property
    def has_reasoning(self) -> bool:
        """Whether a reasoning parser is on."""
        return self._parsers.reasoning != "none"

    @property
    def reads_calls(self) -> bool:
        """Whether a parser of tool calls is on."""
        return self._parsers.tool_call != "none"

    def tool_call_id(self, request_id: str, choice: int, index: int) -> str:
        """The id of one call, the same whenever its request runs again; Mistral's templates want nine characters."""
        digest = hashlib.sha256(f"{request_id}/{choice}/{index}".encode()).hexdigest()
        return digest[:9] if self._parsers.tool_call == "mistral" else f"call_{digest[:24]}"

    def template_reads(self, variable: str) -> bool:
        """Whether the model's template reads a variable."""
        template = self._renderer.template
        return template is not None and variable in template.variables

    async def encode(self, conversation: Conversation, ignore: Ignore) -> Sequence[int]:
        """The prompt alone, however long it is.

        Raises:
            RequestError: a field is not honoured, or the template refuses the conversation.
        """
        check_tools(conversation)
        return (await self._encode(conversation, await self._template_of(conversation), None, ignore))[0]

    async def prepare(self, conversation: Conversation, params: SamplingParams, ignore: Ignore) -> Prepared:
        """The prompt, and the parser of the answer. Sets the tools' constraint in `params`, and resolves their texts.

        `ignore` is called with each field that has no effect on this model.

        Where a parser runs, the text keeps special tokens, since markers may be special tokens.

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
            tool_constraint.check(self._renderer.traits(template, True).tools, ignore)
            if tool_constraint.drops_format:
                params.structured_outputs = None
            constraint = await asyncio.to_thread(tool_constraint.constraint, self._tokenizer.added_token_id, ignore)
            if constraint is not None:
                _constrain(params, constraint)
        await resolve_texts_aside(params, self._tokenizer, ignore)
        too_long = refuse_prompt if conversation.truncation is None else None
        prompt, adjusted = await self._encode(conversation, template, too_long, ignore)
        opened = None
        if self._in_channels:
            opened = False
            self._keep_to_harmony(params, conversation, has_grammar=tool_constraint is not None)
        elif self.has_reasoning:
            opened = self._opens_reasoning(conversation, prompt)
            self._let_reasoning_precede(params, opened)
        self.markers.resolve(params, opened is True)
        separate = conversation.separate_reasoning and self.has_reasoning
        if tool_constraint is None and not self._in_channels and (opened is None or not separate):
            return Prepared([prompt], params, adjusted=adjusted)

        params.skip_special_tokens = False

        def make_parser() -> SampleParser:
            parser = None if tool_constraint is None else tool_constraint.parser()
            if parser is None and self._in_channels:
                parser = HarmonyParser(calls=False)
            decoder = partial(self._tokenizer.text_decoder, prompt, False)
            calls = None if tool_constraint is None else tool_constraint.call_syntax()
            return SampleParser(parser, decoder, opened, separate, self._form, calls=calls)

        return Prepared([prompt], params, make_parser, adjusted)

    async def _encode(
        self, conversation: Conversation, template: ChatTemplate | None, too_long: RefusePrompt | None, ignore: Ignore
    ) -> tuple[Sequence[int], tuple[str, ...]]:
        """The prompt, and the traits for which messages were adjusted."""
        # A model that may call nothing is shown no tools.
        tools = [] if conversation.tool_choice == "none" else [tool.for_template() for tool in conversation.tools]
        known = frozenset[str]() if template is None else template.for_tools(tools).variables
        defaults = {name: value for name, value in self._default_variables.items() if name in known}
        variables = defaults | _variables(conversation, known, self.has_reasoning, ignore)
        text, adjusted = await self._renderer.render(
            conversation.messages,
            tools,
            template,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            variables=variables,
            ignore=ignore,
        )
        (tokens,) = await self._prompts.encode([text], conversation.add_special_tokens, too_long)
        return tokens if conversation.truncation is None else conversation.truncation.kept(tokens), adjusted

    async def _template_of(self, conversation: Conversation) -> ChatTemplate | None:
        if conversation.chat_template is not None and not self._trusts_templates:
            text = "chat_template is refused in requests unless the server runs with --trust-request-chat-template"
            raise RequestError(text, "chat_template")
        return await self._renderer.template_of(conversation.chat_template)

    def _let_reasoning_precede(self, params: SamplingParams, opened: bool) -> None:
        if params.structured_outputs is not None:
            assert params.structured_outputs.grammar is not None
            grammar = params.structured_outputs.grammar
            grammar = after_reasoning(grammar, opened, self._tokenizer.added_token_id, self._form)
            params.structured_outputs = ResolvedConstraint(grammar=grammar)

    def _keep_to_harmony(self, params: SamplingParams, conversation: Conversation, has_grammar: bool) -> None:
        """Apply a format to the final message only, and also stop at the tokens that end a turn in Harmony."""
        if not params.ignore_eos:
            add_stop_tokens(params, self._tokenizer, HARMONY_STOPS)
        if params.structured_outputs is None or has_grammar or conversation.continue_final_message:
            return
        assert params.structured_outputs.grammar is not None
        grammar = params.structured_outputs.grammar
        grammar = harmony_answer([], grammar, False, self._tokenizer.added_token_id)
        params.structured_outputs = ResolvedConstraint(grammar=grammar)

    def _opens_reasoning(self, conversation: Conversation, prompt: Sequence[int]) -> bool:
        """Whether the prompt ends within reasoning. Markers in earlier messages do not count."""
        openings, closings = self._form.openings, self._form.closings
        if conversation.continue_final_message:
            last = conversation.messages[-1]["content"]
            return bool(max(map(last.rfind, openings)) > max(map(last.rfind, closings)))
        return self._tokenizer.decode(prompt[-_TAIL_TOKENS:], False).rstrip().endswith(openings)


def _constrain(params: SamplingParams, constraint: StructuredOutputsParams) -> None:
    params.structured_outputs = constraint
    try:
        params.validate()
    except RequestError as error:
        field = "tool_choice" if error.parameter == "structured_outputs" else error.parameter
        text = (*error.parts, " (calls that must follow a schema use structured outputs)")
        raise RequestError(text, field) from None


def _variables(conversation: Conversation, known: Set[str], has_reasoning: bool, ignore: Ignore) -> dict[str, Any]:
    """Variables for a template that reads the `known` ones.

    Documents that it does not read are refused, as the answer would know nothing of them; other variables are hints.
    """
    fields = {"reasoning_effort": conversation.reasoning_effort, "documents": conversation.documents or None}
    variables: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    if variables.get("reasoning_effort") == "none" and "reasoning_effort" not in known:
        if "enable_thinking" in known:
            del variables["reasoning_effort"]
            variables["enable_thinking"] = False
        elif not has_reasoning:
            del variables["reasoning_effort"]  # There is no reasoning to turn off.
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
        elif name != "enable_thinking" or value is not has_reasoning:  # Otherwise the model does so anyway.
            ignore(field, f"{field} has no effect: the model's chat template does not use it")
    return variables
