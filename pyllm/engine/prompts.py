"""Reads and checks prompts and conversations from programs. Knows no engine and no tokenizer."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict, cast

import msgspec

from pyllm.client.prompt_tokens import PromptTokens
from pyllm.errors import RequestError
from pyllm.parameters import vllm_parameters
from pyllm.parameters.arguments import as_list, flag, instance, mapping, refuse, shown, text, token_ids
from pyllm.parameters.scheduling_params import SchedulingParams

# As in vLLM, a dict has `prompt` or `prompt_token_ids`, and optionally a `cache_salt`.
Prompt = str | Sequence[int] | Mapping[str, Any]
Message = dict[str, Any]

_PROMPT = "a text, a list of token ids, or a dict with prompt or prompt_token_ids"

_NOT_TOKEN_IDS = (str, bytes, bytearray, memoryview)  # sequences, but not of token ids


class TextPrompt(TypedDict):
    """A prompt as a dict with its text; vLLM's name."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as a dict with its token ids, and optionally its text for the output; vLLM's name."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


class Rendering(msgspec.Struct, frozen=True, kw_only=True):
    """The options for rendering a conversation as a prompt; names and defaults are vLLM's.

    `tools` are descriptions of functions for the template, `chat_template_kwargs` other variables for it;
    `chat_template` is the source of another template. With `continue_final_message`, and `add_generation_prompt` off,
    the model continues the last message.

    Raises:
        RequestError: a field has a wrong type.
    """

    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: Sequence[dict[str, Any]] | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.chat_template is not None:
            text("chat_template", self.chat_template)
        for name in ("add_generation_prompt", "continue_final_message"):
            msgspec.structs.force_setattr(self, name, flag(name, getattr(self, name)))
        if self.tools is not None:
            if not isinstance(self.tools, list | tuple):
                refuse("tools", self.tools, "a list of dicts")
            for index, tool in enumerate(self.tools):
                mapping(f"tools[{index}]", tool)
        if self.chat_template_kwargs is not None:
            for name in mapping("chat_template_kwargs", self.chat_template_kwargs):
                text("chat_template_kwargs.keys()", name)


RENDERING = Rendering()


class ParsedPrompt(NamedTuple):
    """A prompt as text or token ids, its text if it is known, and the scheduling parameters with its cache salt."""

    content: str | Sequence[int]
    text: str | None
    scheduling: SchedulingParams


def read_prompt(prompt: Prompt, scheduling: SchedulingParams) -> ParsedPrompt:
    """Read a prompt; a `cache_salt` in a dict, as in vLLM, goes into the scheduling parameters.

    If a dict has text and token ids, the ids are used, and the text is kept for the output.

    Raises:
        RequestError: the prompt is neither a text, nor token ids, nor a dict with one of these.
    """
    instance("scheduling", scheduling, SchedulingParams)
    if isinstance(prompt, Mapping):
        return _read_dict(prompt, scheduling)
    if isinstance(prompt, str):
        return ParsedPrompt(text("prompt", prompt), prompt, scheduling)
    return ParsedPrompt(_read_tokens("prompt", prompt), None, scheduling)


def read_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of prompts, also for a single one; `read_prompt` checks each of them later.

    Raises:
        RequestError: the value is neither a prompt nor a list.
    """
    prompts = as_list(prompts)
    if isinstance(prompts, str | Mapping | PromptTokens):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, _NOT_TOKEN_IDS):
        refuse("prompts", prompts, f"{_PROMPT}, or a list of such")
    if prompts and not isinstance(as_list(prompts[0]), str | Mapping | Sequence):
        return [_read_tokens("prompts", prompts)]
    return list(cast(Sequence[Prompt], prompts))


def read_messages(messages: Sequence[Message], name: str = "messages") -> Sequence[Message]:
    """Read a conversation; each content becomes a text: text parts are joined by line ends, as in vLLM.

    Raises:
        RequestError: `messages` is no list of dicts with a role, or empty, or a part is no text.
    """
    if not isinstance(messages, list | tuple):
        refuse(name, messages, "a list of dicts with role and content")
    if not messages:
        raise RequestError(f"{name} is empty; give at least one message", "messages")
    return [_read_message(f"{name}[{index}]", message) for index, message in enumerate(messages)]


def read_conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """A list of conversations, also for a single one; raises the errors of `read_messages`."""
    if isinstance(messages, list | tuple) and messages and all(isinstance(each, list | tuple) for each in messages):
        batch = cast(Sequence[Sequence[Message]], messages)
        return [read_messages(each, f"messages[{index}]") for index, each in enumerate(batch)]
    return [read_messages(cast(Sequence[Message], messages))]


def _read_dict(prompt: Mapping[str, Any], scheduling: SchedulingParams) -> ParsedPrompt:
    given: dict[str, Any] = dict(prompt)
    salt = given.pop("cache_salt", None)
    if salt is not None:
        scheduling = msgspec.structs.replace(scheduling, cache_salt=salt)
    tokens = given.pop("prompt_token_ids", None)
    words = given.pop("prompt", None)
    known = vllm_parameters.PROMPTS
    vllm_parameters.refuse_other_values(known, {name: given.pop(name) for name in known if name in given})
    if given:
        has = "prompt or prompt_token_ids, and perhaps cache_salt"
        names = ", ".join(map(repr, given))
        raise RequestError(f"a prompt that is a dict has {has}; this one also has {names:.200}", "prompt")
    if words is None and tokens is None:
        raise RequestError("a prompt that is a dict needs prompt or prompt_token_ids", "prompt")
    words = None if words is None else text("prompt", words)
    if tokens is None:
        return ParsedPrompt(words or "", words, scheduling)
    return ParsedPrompt(_read_tokens("prompt_token_ids", tokens), words, scheduling)


def _read_tokens(name: str, tokens: Any) -> Sequence[int]:
    if isinstance(tokens, PromptTokens):
        return tokens
    if not isinstance(as_list(tokens), Sequence) or isinstance(tokens, _NOT_TOKEN_IDS):
        refuse(name, tokens, "a list of token ids" if name == "prompt_token_ids" else _PROMPT)
    return token_ids(name, tokens)


def _read_message(name: str, message: Any) -> Message:
    given = dict(mapping(name, message))
    if not isinstance(given.get("role"), str):
        raise RequestError(f"{name} needs a role, a text such as user; it has {shown(given.get('role'))}", "messages")
    content = given.get("content")
    if isinstance(content, list | tuple):
        given["content"] = "\n".join(_part(f"{name}.content[{index}]", part) for index, part in enumerate(content))
    elif content is not None and not isinstance(content, str):
        raise RequestError(f"{name}.content must be a text or a list of parts, got {shown(content)}", "messages")
    return given


def _part(name: str, part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        text = f'{name} must be a text, or a dict with type "text" and the text, got {shown(part)}'
        raise RequestError(text, "messages")
    return str(part["text"])
