"""Prompts as token ids: texts and conversations, encoded off the event loop where they are long.

A text is looked up segment by segment (`frontend/text/prompt_segments.py`), so that a conversation that goes on costs
its new turns only. Knows no HTTP, and no request but its prompt.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar

from pyllm.client.prompt_tokens import PromptTokens, known_tokens
from pyllm.client.submission import only_embeds, refuse_input, refuse_prompt
from pyllm.errors import RequestError, RequestTooLargeError
from pyllm.frontend.text.encoding_threads import EncodingCache, EncodingCounts, EncodingThreads
from pyllm.frontend.text.templates import ChatTemplate, Message, no_chat_template
from pyllm.frontend.text.tokenizer import INLINE_CHARACTERS, Tokenizer
from pyllm.frontend.text.truncation import Truncation
from pyllm.wire.messages import ModelInfo

# Characters that are cut and looked up in the cache on the event loop, in 1 ms; a longer text is encoded whole.
MAX_CACHED_CHARACTERS = 1 << 20
INLINE_TOKENS = 4096  # ids that are checked in 0.2 ms
MESSAGE_CHARACTERS = 32  # a message's markup takes the template as long as so many characters take to be encoded

CHARACTERS_PER_TOKEN = 4  # to look one token up takes as long as to encode so many

P = ParamSpec("P")
T = TypeVar("T")

# Makes the error for a prompt of so many tokens, or, where the last argument is false, of at least so many.
RefusePrompt = Callable[[int, ModelInfo, bool], RequestTooLargeError]

_NO_VARIABLES: Mapping[str, Any] = {}


class PromptEncoder:
    """The encoder of one model's prompts. `counts` are the cache's."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        model: ModelInfo,
        counts: EncodingCounts | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._cache = EncodingCache(counts or EncodingCounts())
        self._threads = EncodingThreads(tokenizer.encode_packed)

    async def encode(
        self,
        prompts: Sequence[str | Sequence[int]],
        add_special_tokens: bool = True,
        too_long: RefusePrompt | None = refuse_prompt,
        name: str = "prompt",
    ) -> list[PromptTokens]:
        """The token ids of each prompt; a prompt that is token ids already is checked.

        Raises:
            RequestTooLargeError: a prompt certainly cannot fit the context; then none is encoded.
            RequestError: a text is no Unicode, or an id is outside the vocabulary.
        """
        if too_long is not None:
            for index, prompt in enumerate(prompts):
                with RequestError.of_item(index, len(prompts)):
                    self._check_length(prompt, too_long)
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        encoded = iter(await self._encode_texts(texts, add_special_tokens) if texts else ())
        checked = []
        for index, prompt in enumerate(prompts):
            with RequestError.of_item(index, len(prompts)):
                checked.append(await self._check_ids(next(encoded) if isinstance(prompt, str) else prompt, name))
        return checked

    async def encode_inputs(
        self,
        inputs: Sequence[str | Sequence[int]],
        truncation: Truncation | None = None,
        add_special_tokens: bool = True,
    ) -> Sequence[Sequence[int]]:
        """`encode` for inputs that are embedded or classified, which may fill the context, or are shortened."""
        whole = await self.encode(inputs, add_special_tokens, None if truncation else refuse_input, "input")
        if truncation is None:
            return whole
        around = self._tokenizer.encode("", add_special_tokens)
        return [truncation.kept(tokens, around) for tokens in whole]

    async def render_chat(
        self,
        template: ChatTemplate | None,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] = _NO_VARIABLES,
    ) -> str:
        """The text of a conversation, rendered by a template; `ChatTemplate.render` has the options.

        Raises:
            RequestError: there are no messages or no template, or the template refuses the messages.
        """
        if template is None:
            raise RequestError(no_chat_template(), "messages") if self._model.can_generate else only_embeds(self._model)
        if not messages:
            raise RequestError("messages is empty; give at least one message", "messages")
        options = (messages, add_generation_prompt, continue_final_message, variables)
        length = sum(MESSAGE_CHARACTERS + len(str(value)) for message in messages for value in message.values())
        if length < INLINE_CHARACTERS and not variables:
            return template.render(*options)
        return await self._threads.run(length, template.render, *options)

    async def run(self, num_tokens: int, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run a call that reads so many tokens one by one; for many tokens it runs in the encoder's threads."""
        return await self.run_texts(num_tokens * CHARACTERS_PER_TOKEN, work, *args, **options)

    async def run_texts(self, characters: int, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run a call that takes as long as encoding so many characters, in the encoder's threads if they are many."""
        if characters < INLINE_CHARACTERS:
            return work(*args, **options)
        return await self._threads.run(characters, work, *args, **options)

    def resize_cache(self, share: float) -> None:
        """Keep at most this share of the cache's usual bytes."""
        self._cache.resize(share)

    def _check_length(self, prompt: str | Sequence[int], too_long: RefusePrompt) -> None:
        least = len(prompt)
        if isinstance(prompt, str) and least > self._model.max_model_len:
            least = self._tokenizer.min_tokens(prompt)
        if least > self._model.max_model_len:  # Whether one more token must fit depends on the request.
            raise too_long(least, self._model, not isinstance(prompt, str))

    async def _check_ids(self, prompt: bytes | Sequence[int], name: str) -> PromptTokens:
        # Texts, too: some tokenizers have more tokens than their model.
        num_tokens = len(prompt) // 4 if isinstance(prompt, bytes) else len(prompt)
        if num_tokens < INLINE_TOKENS:
            return known_tokens(prompt, self._model.vocab_size, name)
        return await self._threads.run(num_tokens, known_tokens, prompt, self._model.vocab_size, name)

    async def _encode_texts(self, texts: list[str], add_special_tokens: bool) -> list[bytes]:
        """The packed ids of each text."""
        if not add_special_tokens:
            return await self._encode_plain(texts)
        frame = self._tokenizer.frame
        if frame is not None:
            head, tail = frame
            return [head + packed + tail for packed in await self._encode_plain(texts)]
        encode = partial(self._tokenizer.encode_packed, texts, add_special_tokens=True)
        # The sum counts: a thousand short texts hold up the other streams as one long text does.
        length = sum(map(len, texts))
        return list(map(_checked, encode() if length < INLINE_CHARACTERS else await self._threads.run(length, encode)))

    async def _encode_plain(self, texts: list[str]) -> list[bytes]:
        """The packed ids of each text without special tokens, from the cache where they are known."""
        split = [
            self._tokenizer.segments.split(text) if len(text) <= MAX_CACHED_CHARACTERS else [text] for text in texts
        ]
        known = {part: self._cache.get(part) for parts in split for part in parts}
        missing = [part for part, packed in known.items() if packed is None]
        for part, packed in (await self._encode_missing(missing)).items() if missing else ():
            known[part] = packed
            self._cache.put(part, packed)
        return [b"".join([known[part] or b"" for part in parts]) for parts in split]

    async def _encode_missing(self, texts: list[str]) -> dict[str, bytes]:
        if sum(map(len, texts)) >= INLINE_CHARACTERS:
            return await self._threads.encode(texts)
        # One by one: for a batch the library wakes its own threads, for which this one would wait.
        return {text: _checked(*self._tokenizer.encode_packed([text])) for text in texts}


def _checked(result: bytes | Exception) -> bytes:
    if isinstance(result, Exception):
        raise result
    return result
