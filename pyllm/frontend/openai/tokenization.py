"""`/tokenize`, `/detokenize` and `/tokenizer_info`, as in vLLM: a prompt or a conversation to token ids, and back."""

from typing import Any

from msgspec import Struct

from pyllm.errors import RequestError
from pyllm.frontend.http.routing import JSONBody, Request, ResponseSpec, Route, get, post
from pyllm.frontend.http.unsupported import Unsupported, refuse_unsupported
from pyllm.frontend.openai.chat_conversation import conversation_of
from pyllm.frontend.openai.error_format import ERROR_RESPONSES, LOOKUP_ERROR_RESPONSES
from pyllm.frontend.openai.protocol import ChatMessage, ChatRequest
from pyllm.frontend.openai.tool_protocol import ToolDefinition
from pyllm.frontend.requests.admission_control import admit
from pyllm.frontend.requests.request_context import context_of
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.text.json_schemas import Ignore


class TokenizeRequest(Struct, kw_only=True):
    """Exactly one of `prompt` and `messages`. Special tokens are added to a prompt; a chat template writes its own."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[ToolDefinition] | None = None

    media_io_kwargs: Unsupported[dict[str, Any]] = {}
    mm_processor_kwargs: Unsupported[dict[str, Any]] = {}


class Tokenization(Struct):
    """The number of tokens, and their ids. `token_strs` has the vocabulary's spelling of each."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(Struct, kw_only=True):
    """Token ids; special tokens are part of the text."""

    tokens: list[int]
    model: str | None = None


class Detokenization(Struct):
    """The text of the token ids."""

    prompt: str


class TokenizerInfo(Struct, kw_only=True):
    """The properties of the tokenizer under their names in `transformers`. A missing token or template is null."""

    tokenizer_class: str = "PreTrainedTokenizerFast"
    name_or_path: str
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None = None
    chat_template: str | None


# Fields of a conversation, which are refused beside a prompt.
_CHAT_FIELDS = ("add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs", "tools")


def tokenize_route(state: ServerState) -> Route:
    """The route, for one server."""

    @post(
        "/tokenize",
        summary="Turn a prompt or a conversation into token ids",
        responses={200: ResponseSpec(Tokenization), **ERROR_RESPONSES},
    )
    async def tokenize(request: Request, data: JSONBody[TokenizeRequest]) -> Tokenization:
        context = context_of(request)
        await state.models.choose(context, data.model)
        refuse_unsupported(data)
        await admit(state, context, num_sequences=0)
        tokens = await _tokens(state, data, context.ignore)
        names = None
        if data.return_token_strs:
            names = await state.prompts.run(len(tokens), state.tokenizer.token_names, tokens)
        return Tokenization(len(tokens), state.client.model.max_model_len, tokens, names)

    return tokenize


def detokenize_route(state: ServerState) -> Route:
    """The route, for one server."""
    vocab_size = state.client.model.vocab_size

    @post(
        "/detokenize",
        summary="Turn token ids into text",
        responses={200: ResponseSpec(Detokenization), **ERROR_RESPONSES},
    )
    async def detokenize(request: Request, data: JSONBody[DetokenizeRequest]) -> Detokenization:
        context = context_of(request)
        await state.models.choose(context, data.model)
        await admit(state, context, num_sequences=0)
        tokens = data.tokens
        if tokens and (min(tokens) < 0 or max(tokens) >= vocab_size):
            wrong = next(token for token in tokens if not 0 <= token < vocab_size)
            raise RequestError(f"token id {wrong} is outside the vocabulary of {vocab_size} tokens", "tokens")
        decode = state.tokenizer.decode
        return Detokenization(await state.prompts.run(len(tokens), decode, tokens, skip_special_tokens=False))

    return detokenize


def tokenizer_info_route(state: ServerState) -> Route:
    """The route, for one server: lm-eval looks for it before it uses `/tokenize`."""
    tokenizer = state.tokenizer
    info = TokenizerInfo(
        name_or_path=state.model_name,
        model_max_length=state.client.model.max_model_len,
        bos_token=tokenizer.bos_token or None,
        eos_token=tokenizer.eos_token or None,
        chat_template=None if state.chat_template is None else state.chat_template.source,
    )

    @get(
        "/tokenizer_info",
        summary="The tokenizer's special tokens, and the chat template",
        responses=LOOKUP_ERROR_RESPONSES,
    )
    def tokenizer_info() -> TokenizerInfo:
        return info

    return tokenizer_info


async def _tokens(state: ServerState, request: TokenizeRequest, ignore: Ignore) -> list[int]:
    if (request.prompt is None) == (request.messages is None):
        raise RequestError("give exactly one of prompt and messages", "prompt")
    if request.messages is None:
        assert request.prompt is not None
        for name in _CHAT_FIELDS:
            if getattr(request, name) is not None:
                raise RequestError(f"{name} requires messages", name)
        adds = request.add_special_tokens is not False
        (tokens,) = await state.prompts.encode([request.prompt], adds, None)
        return tokens.tolist()
    names = ("messages", "add_special_tokens", *_CHAT_FIELDS)
    chat = ChatRequest(**{name: value for name in names if (value := getattr(request, name)) is not None})
    return list(await state.chat.encode(conversation_of(chat, ignore), ignore))
