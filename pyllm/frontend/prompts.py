"""What a caller gives as a prompt, as token ids: texts and conversations, off the event loop where they are long.

Knows no HTTP, and no request but its prompt.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pyllm.errors import RequestError
from pyllm.frontend.chat_template import ChatTemplate, Message
from pyllm.frontend.submission import refuse_prompt
from pyllm.frontend.tokenizer import INLINE_CHARACTERS, Tokenizer
from pyllm.messages import ModelInfo

_NO_VARIABLES: Mapping[str, Any] = {}


class PromptEncoder:
    """For one model. `chat_template` is None for a model that has none."""

    def __init__(self, tokenizer: Tokenizer, chat_template: ChatTemplate | None, model: ModelInfo) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._model = model

    async def encode(
        self, prompts: Sequence[str | Sequence[int]], add_special_tokens: bool = True, refuse_long: bool = True
    ) -> list[list[int]]:
        """The token ids of each prompt; one that is token ids already passes as it is.

        Raises:
            RequestTooLargeError: `refuse_long`, and a text certainly cannot fit the context; then none is encoded.
        """
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        for text in texts:
            least = self._tokenizer.min_tokens(text)
            if refuse_long and least >= self._model.max_model_len:
                raise refuse_prompt(f"at least {least}", self._model)
        # All together count: a thousand short texts hold up the other streams as one long text does.
        if sum(map(len, texts)) < INLINE_CHARACTERS:
            batch = self._tokenizer.encode_batch(texts, add_special_tokens)
        else:
            batch = await asyncio.to_thread(self._tokenizer.encode_batch, texts, add_special_tokens)
        encoded = iter(batch)
        return [next(encoded) if isinstance(prompt, str) else list(prompt) for prompt in prompts]

    async def encode_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool = False,
        *,
        variables: Mapping[str, Any] = _NO_VARIABLES,
        template: ChatTemplate | None = None,
        refuse_long: bool = True,
    ) -> list[int]:
        """The token ids of a conversation, rendered by the model's template or another one.

        `ChatTemplate.render` has the options.

        Raises:
            RequestError: there are no messages or no template, or the template refuses the messages.
            RequestTooLargeError: `refuse_long`, and the rendered text certainly cannot fit the context.
        """
        template = self._chat_template if template is None else template
        if template is None:
            text = "this model has no chat template; render the conversation yourself for /v1/completions or generate()"
            raise RequestError(text, "messages")
        if not messages:
            raise RequestError("messages is empty; give at least one message", "messages")
        options = (messages, add_generation_prompt, continue_final_message, variables)
        is_short = sum(len(str(value)) for message in messages for value in message.values()) < INLINE_CHARACTERS
        if is_short and not variables:
            text = template.render(*options)
        else:
            text = await asyncio.to_thread(template.render, *options)
        (tokens,) = await self.encode([text], add_special_tokens, refuse_long)
        return tokens
