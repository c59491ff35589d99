"""Chat templates: messages to the text of a prompt, by the model's own Jinja template. Does not tokenise.

Templates are written for transformers: they find its environment, functions and filters here, in a sandbox.
"""

import copy
import datetime
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
import jinja2.meta
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pyllm.checkpoint.types import TokenizerFiles
from pyllm.errors import ConfigError, RequestError, TemplateRefusalError

# A body of 10 MB with the markup around its messages stays far below; a template that loops does not.
MAX_CHARACTERS = 16 << 20
# Of a template that comes with a request: the longest that models have are below 40,000.
MAX_SOURCE_CHARACTERS = 1 << 17
# Templates of requests that are remembered.
_MAX_TEMPLATES = 64

Message = Mapping[str, Any]

_NO_VARIABLES: Mapping[str, Any] = {}
_END_MARK = "\x00end of the last message\x00"


def no_chat_template(model: str = "this model") -> str:
    """The text for a model without a chat template, with the remedies."""
    return (
        f"{model} has no chat template, so requests with messages are refused: give one by --chat-template FILE, or "
        "have a text continued instead, by `pyllm complete`, /v1/completions or generate()"
    )


class ChatTemplate:
    """A compiled template, with the special tokens that it may name. `variables` are the names that it reads.

    `tool_source` is the template that takes its place where tools are given (transformers' `tool_use`).

    Raises:
        ConfigError: the template does not compile.
    """

    def __init__(self, source: str, bos_token: str, eos_token: str, tool_source: str | None = None) -> None:
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._special_tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self.source = source
        # Such a template gets a copy of the variables, as they may share lists with other requests.
        self._changes_lists = environment.changes_lists = ".append(" in source or ".pop(" in source
        try:
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(environment.parse(source)))
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template does not compile: {error}") from None

        self._for_tools = None if tool_source is None else ChatTemplate(tool_source, bos_token, eos_token)

    def for_tools(self, tools: object) -> "ChatTemplate":
        """The template to render with these tools, which may be none."""
        return self._for_tools if tools and self._for_tools is not None else self

    @classmethod
    def of(cls, files: TokenizerFiles) -> "ChatTemplate | None":
        """The template of a checkpoint, or None where it has none."""
        if not files.chat_template:
            return None
        return cls(files.chat_template, files.bos_token, files.eos_token, files.tool_chat_template)

    @classmethod
    def of_request(cls, source: str, model: "ChatTemplate | None") -> "ChatTemplate":
        """A template that came with a request, with the special tokens of the model's own.

        Raises:
            ConfigError: it is too long, or does not compile.
        """
        if len(source) > MAX_SOURCE_CHARACTERS:
            text = f"chat_template has {len(source)} characters; at most {MAX_SOURCE_CHARACTERS} are compiled"
            raise ConfigError(text)
        tokens = {"bos_token": "", "eos_token": ""} if model is None else model._special_tokens
        return _compiled(source, **tokens)

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] = _NO_VARIABLES,
    ) -> str:
        """The prompt for a conversation; each message has a `role` and, as text, a `content`.

        `continue_final_message` ends the prompt with the last message's content, for the model to go on with it. Other
        `variables` are `tools`, `documents`, and any others that the template reads.

        Raises:
            TemplateRefusalError: the template refuses the messages; the text is the template's own.
            RequestError: the prompt is too long, or there is no last message to continue.
        """
        if continue_final_message:
            if not isinstance(messages[-1].get("content"), str):
                raise RequestError("continue_final_message: the last message has no text to go on with", "messages")
            messages = [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + _END_MARK}]
        # Templates ask `tools is not none`, which an undefined name would pass.
        variables = {
            "tools": None,
            "documents": None,
            **self._named_otherwise(variables),
            **variables,
            **self._special_tokens,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        pieces = []
        length = 0
        try:
            if self._changes_lists:
                variables = copy.deepcopy(variables)
            for piece in self._template.generate(variables):
                length += len(piece)
                if length > MAX_CHARACTERS:
                    raise RequestError(f"the chat template gives more than {MAX_CHARACTERS} characters", "messages")
                pieces.append(piece)
        except RequestError:
            raise
        except Exception as error:  # noqa: BLE001 - a template can raise whatever Python can
            raise TemplateRefusalError(f"the chat template refuses these messages: {error}", "messages") from None
        text = "".join(pieces)
        if not continue_final_message:
            return text
        end = text.rfind(_END_MARK)
        if end < 0:
            raise RequestError("continue_final_message: the template leaves the last message out", "messages")
        return text[:end]

    def _named_otherwise(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """The tools and the date under the names that the templates of Firefunction have for them."""
        others: dict[str, Any] = {}
        if "functions" in self.variables:
            others["functions"] = _tojson(variables.get("tools") or [], indent=4)
        if "datetime" in self.variables:
            others["datetime"] = _strftime_now("%Y-%m-%d %H:%M")
        return others


class _Sandbox(ImmutableSandboxedEnvironment):
    """Transformers' sandbox. With `changes_lists` a template may append to lists or pop from them, as Kimi K2's."""

    changes_lists = False

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        is_of_list = self.changes_lists and isinstance(obj, list) and attr in ("append", "pop")
        return is_of_list or super().is_safe_attribute(obj, attr, value)


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; here its content stands for itself."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_compiled = lru_cache(maxsize=_MAX_TEMPLATES)(ChatTemplate)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter `tojson` without the HTML escapes of Jinja's own, which a model would read as they stand."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().astimezone().strftime(form)
