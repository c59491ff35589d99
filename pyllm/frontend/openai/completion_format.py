"""The format of completions: chunks of text, after the prompt if the request wants an echo."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from pyllm.client.logprobs import Logprob, LogprobEntries
from pyllm.frontend.openai.chunks import ChunkFormat
from pyllm.frontend.openai.logprobs import (
    add_completion_logprobs,
    completion_logprobs,
    prompt_logprobs,
    token_names,
)
from pyllm.frontend.openai.protocol import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from pyllm.frontend.requests.generation import TokenCounts
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.text.detokenizer import TextDelta


class EchoedPrompt(NamedTuple):
    """A prompt that is part of its answer: its text, its tokens, and the text of the first token."""

    text: str
    tokens: Sequence[int]
    first: str


class CompletionFormat(ChunkFormat):
    """The answer to one request. `prompts` are those that it shows."""

    _CHUNK, _ID_PREFIX, _OBJECT = Completion, "cmpl", "text_completion"
    _chunk: Completion

    def __init__(
        self,
        state: ServerState,
        context: RequestContext,
        request: CompletionRequest,
        prompts: Sequence[EchoedPrompt] = (),
        counts_of: Callable[[int], TokenCounts] | None = None,
    ) -> None:
        super().__init__(state, context, request, counts_of)
        self._prompts = prompts
        self._echoes = request.echo is True
        self._num_samples = request.n or 1
        self._has_logprobs = request.logprobs is not None
        self._has_prompt_logprobs = request.prompt_logprobs is not None
        self._name = token_names(request.return_tokens_as_token_ids)
        self._text_offsets: dict[int, int] = {}  # where the next token's text begins, by choice

    def _first(self, choice: int) -> Completion | None:
        """A chunk of the prompt, where the answer begins with it."""
        if not self._prompts:
            return None
        prompt = self._prompt(choice)
        first = CompletionChoice(choice, prompt.text if self._echoes else "")
        if self._shows_tokens:
            first.prompt_token_ids, first.token_ids = list(prompt.tokens), []
        return msgspec.structs.replace(self._chunk, choices=[first])

    def _piece(self, choice: int, delta: TextDelta) -> CompletionChoice:
        """A choice with new text."""
        piece = CompletionChoice(choice, delta.text, self._logprobs(choice, delta))
        if self._shows_tokens:
            piece.token_ids = delta.tokens
        return piece

    def _last(self, choice: int, delta: TextDelta) -> CompletionChoice:
        """A choice with its finish reason."""
        last = self._piece(choice, delta)
        last.finish_reason, last.stop_reason = delta.finish_reason, delta.stop_reason
        return last

    def whole(self, choices: list[TextDelta], prompts: list[list[LogprobEntries]], counts: TokenCounts) -> Completion:
        """The answer."""
        answers = []
        for index, (choice, of_prompt) in enumerate(zip(choices, prompts, strict=True)):
            echoed = self._echoed_logprobs(index, of_prompt)
            answer = self._last(index, choice)
            if self._echoes:
                answer.text = self._prompt(index).text + answer.text
            answer.prompt_token_ids = list(self._prompt(index).tokens) if self._shows_tokens else None
            answer.token_ids = answer.token_ids or ([] if self._shows_tokens else None)
            if echoed is not None:
                if answer.logprobs is not None:
                    add_completion_logprobs(echoed, answer.logprobs)
                answer.logprobs = echoed
            answer.prompt_logprobs = prompt_logprobs(of_prompt) if self._has_prompt_logprobs else None
            answers.append(answer)
        return msgspec.structs.replace(self._chunk, choices=answers, usage=self._usage(counts))

    def _prompt(self, choice: int) -> EchoedPrompt:
        return self._prompts[choice // self._num_samples]

    def _logprobs(self, choice: int, delta: TextDelta) -> CompletionLogprobs | None:
        if not self._has_logprobs or not delta.logprobs:
            return None
        logprobs, end = completion_logprobs(delta.logprobs, self._text_offsets.get(choice, 0), self._name)
        self._text_offsets[choice] = end
        return logprobs

    def _echoed_logprobs(self, choice: int, of_prompt: list[LogprobEntries]) -> CompletionLogprobs | None:
        """The prompt's log-probabilities; its first token has none."""
        if not (self._echoes and self._has_logprobs):
            return None
        prompt = self._prompt(choice)
        echoed, end = completion_logprobs([{}, *of_prompt], len(prompt.first), self._name)
        echoed.tokens[0] = self._name(prompt.tokens[0], Logprob(0.0, decoded_token=prompt.first))
        echoed.text_offset[0] = 0
        self._text_offsets[choice] = end
        return echoed
