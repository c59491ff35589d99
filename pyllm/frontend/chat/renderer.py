"""Renders conversations by a model's chat template, in the nearest form that it takes. Knows no API's shapes."""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from pyllm.errors import ConfigError, RequestError, TemplateRefusalError
from pyllm.frontend.chat.conversation import call_arguments, with_call_ids
from pyllm.frontend.chat.message_shapes import Shaped, plainest, shaped
from pyllm.frontend.chat.parsers.parser_selection import parsers_of
from pyllm.frontend.chat.template_traits import TemplateTraits, template_traits, with_functions
from pyllm.frontend.text.json_schemas import Ignore, warn_once
from pyllm.frontend.text.prompt_encoder import PromptEncoder
from pyllm.frontend.text.templates import ChatTemplate, Message

logger = logging.getLogger(__name__)

_NO_VARIABLES: Mapping[str, Any] = {}


class Rendered(NamedTuple):
    """The text of a prompt, and the traits that its template lacks (`Shaped.adjusted`)."""

    text: str
    adjusted: tuple[str, ...]


class ChatRenderer:
    """Renders conversations for one model; `template` is None for a model that has none.

    `parsers` are the names of the parsers for its answers. The constructor probes the template for some 0.1 s.

    Raises:
        ConfigError: there is no such parser, or it cannot be loaded.
    """

    def __init__(
        self,
        prompts: PromptEncoder,
        template: ChatTemplate | None,
        tool_call_parser: str = "auto",
        reasoning_parser: str = "auto",
    ) -> None:
        self.template = template
        self._prompts = prompts
        source, shows_tools = "", False
        if template is not None:
            _probe(template)
            source = template.for_tools(True).source
            shows_tools = template_traits(template.for_tools(True), True).tools
        self.parsers = parsers_of(source, shows_tools, tool_call_parser, reasoning_parser)

    async def template_of(self, source: str | None) -> ChatTemplate | None:
        """The template of a request, which may bring its own.

        Raises:
            RequestError: it is too long, or does not compile.
        """
        if source is None:
            return self.template
        try:
            return await asyncio.to_thread(_probed, source, self.template)
        except ConfigError as error:
            raise RequestError(str(error), "chat_template") from None

    def traits(self, template: ChatTemplate | None, with_tools: bool) -> TemplateTraits:
        """The traits of a template for this model's conversations, with or without tools."""
        if template is None:
            return TemplateTraits()
        template = template.for_tools(with_tools)
        if not self.parsers.explains_tools:
            return template_traits(template, with_tools)
        # Told by the template itself, the model would write calls in a form that no parser reads.
        without = template_traits(template, False)
        return msgspec.structs.replace(without, tools=False, tool_calls=False, tool_results=False)

    async def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        template: ChatTemplate | None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] = _NO_VARIABLES,
        ignore: Ignore = warn_once,
    ) -> Rendered:
        """A conversation as the text of a prompt. `ignore` is called with a variable that the template refuses.

        Raises:
            RequestError: there are no messages or no template, the template refuses the messages in every form, or the
                tools cannot be written as JSON.
        """
        messages = with_call_ids(messages)
        template = template and template.for_tools(tools)
        first: TemplateRefusalError | None = None
        for shape, given in self._attempts(messages, tools, self.traits(template, bool(tools)), variables):
            shown = given if shape.tools is None else {**given, "tools": shape.tools}
            options = shape.messages, add_generation_prompt, continue_final_message, shown
            try:
                text = await self._prompts.render_chat(template, *options)
            except TemplateRefusalError as refusal:
                first = first or refusal
                continue
            for name in variables.keys() - given.keys():
                ignore(name, f"{name} has no effect: {first}")
            if shape.adjusted:
                logger.debug("messages were adjusted, as the chat template lacks: %s", ", ".join(shape.adjusted))
            return Rendered(text, shape.adjusted)
        assert first is not None
        raise first

    def _attempts(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        traits: TemplateTraits,
        variables: Mapping[str, Any],
    ) -> Iterator[tuple[Shaped, Mapping[str, Any]]]:
        """Forms and variables to try in turn: a template may refuse an effort, or a shape that no probe covers."""
        conversation = messages, tools, traits, self.parsers.tool_call
        shape = shaped(*conversation)
        yield shape, variables
        if "reasoning_effort" in variables:
            yield shape, {name: value for name, value in variables.items() if name != "reasoning_effort"}
        yield plainest(*conversation), variables


def program_messages(messages: Sequence[Message]) -> list[Message]:
    """A program's messages in OpenAI's form, as templates want them: each with a content and decoded arguments.

    Raises:
        RequestError: a call is not in OpenAI's form.
    """
    try:
        return [with_functions({**message, "content": message.get("content") or ""}, _read) for message in messages]
    except (LookupError, TypeError) as error:
        text = f"tool_calls of a message are not in OpenAI's form: {type(error).__name__}: {error}"
        raise RequestError(text, "messages") from None


def _read(function: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**function, "name": function["name"], "arguments": call_arguments(function["arguments"])}


def _probed(source: str, model: ChatTemplate | None) -> ChatTemplate:
    """The template of a request, with its traits already found."""
    template = ChatTemplate.of_request(source, model)
    _probe(template)
    return template


def _probe(template: ChatTemplate) -> None:
    """Find a template's traits now, so that no request waits for them."""
    for rendered in (template, template.for_tools(True)):
        for with_tools in (False, True):
            template_traits(rendered, with_tools)
