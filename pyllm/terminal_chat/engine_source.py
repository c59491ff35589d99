"""Answers of an engine in this program. Knows neither HTTP nor a terminal."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from pyllm.engine.async_engine import AsyncEngine
from pyllm.engine.prompts import Prompt
from pyllm.errors import ConfigError
from pyllm.frontend.chat.conversation import Conversation
from pyllm.frontend.chat.parsers.parsed_pieces import Content, Reasoning
from pyllm.frontend.chat.parsers.sample_parser import SampleParser
from pyllm.frontend.text.detokenizer import TextDelta
from pyllm.frontend.text.outputs import RequestOutput
from pyllm.frontend.text.templates import no_chat_template
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.structured_outputs_params import StructuredOutputsParams
from pyllm.terminal_chat.answer_source import AnswerParameters, AnswerPiece, Message, TokenUsage

logger = logging.getLogger(__name__)


class EngineSource:
    """An engine with options of `AsyncEngine`. The constructor reads the model's files, or downloads them.

    `make_engine` creates the engine from a model's name and the options.

    Raises:
        ConfigError: the model or an option is invalid.
    """

    def __init__(
        self, model: str, options: Mapping[str, Any], make_engine: Callable[..., AsyncEngine] = AsyncEngine
    ) -> None:
        self._options = dict(options)
        self._make_engine = make_engine
        self._engine = make_engine(model, **self._options)

    @property
    def model(self) -> str:
        """The model's name."""
        return self._engine.model_name

    @property
    def description(self) -> str:
        """The model's name, with the remark that it runs here."""
        return f"{self.model}, computed by this program"

    @property
    def chat_template(self) -> str | None:
        """The template in the model's files."""
        return self._engine.get_tokenizer().chat_template

    async def check_chat(self) -> None:
        """Refuse a model whose files have no chat template."""
        _check_template(self._engine)

    async def start(self) -> None:
        """Load the model, with a progress bar on stderr."""
        await self._engine.start()

    async def models(self) -> list[str]:
        """The only model."""
        return [self.model]

    async def select(self, name: str) -> None:
        """Load another model with the same options, in place of this one."""
        # Reading the model may need a download.
        engine = await asyncio.to_thread(self._make_engine, name, **self._options)
        _check_template(engine)
        await self._engine.close()
        self._engine = engine
        await engine.start()

    async def chat(
        self, messages: Sequence[Message], parameters: AnswerParameters
    ) -> AsyncGenerator[AnswerPiece, None]:
        """Answer a conversation by the model's chat template, with the reasoning separated."""
        conversation = Conversation(
            messages=messages,
            reasoning_effort=parameters.reasoning_effort,
            template_variables=parameters.chat_template_kwargs or {},
        )
        preprocessor = self._engine.chat_preprocessor()
        prepared = await preprocessor.prepare(conversation, self._sampling(parameters), _log_ignored)
        parsers = None if prepared.make_parser is None else [prepared.make_parser() for _ in range(prepared.params.n)]
        async with contextlib.aclosing(self._pieces(prepared.prompts[0], prepared.params, parsers)) as pieces:
            async for piece in pieces:
                yield piece

    def complete(self, prompt: str, parameters: AnswerParameters) -> AsyncGenerator[AnswerPiece, None]:
        """Continue the text, without a chat template."""
        return self._pieces(prompt, self._sampling(parameters), None)

    async def close(self) -> None:
        """Stop the engine's processes."""
        await self._engine.close()

    async def _pieces(
        self, prompt: Prompt, params: SamplingParams, parsers: Sequence[SampleParser] | None
    ) -> AsyncGenerator[AnswerPiece, None]:
        seen = [TextDelta("", []) for _ in range(params.n)]
        output: RequestOutput | None = None
        async with contextlib.aclosing(self._engine.generate(prompt, params)) as outputs:
            async for output in outputs:
                for sample in output.outputs:
                    before = seen[sample.index]
                    text, tokens = sample.text[len(before.text) :], sample.token_ids[len(before.tokens) :]
                    ended = sample.finish_reason if before.finish_reason is None else None
                    if not (text or tokens or ended):
                        continue
                    seen[sample.index] = TextDelta(sample.text, sample.token_ids, sample.finish_reason)
                    delta = TextDelta(text, tokens, ended)
                    yield _read(sample.index, delta, None if parsers is None else parsers[sample.index])
        assert output is not None, "a finished request has an output"
        num_tokens = sum(len(sample.token_ids) for sample in output.outputs)
        yield AnswerPiece(usage=TokenUsage(len(output.prompt_token_ids), num_tokens, output.num_cached_tokens))

    def _sampling(self, parameters: AnswerParameters) -> SamplingParams:
        given = parameters.sampling()
        limit = given.pop("max_tokens", None)
        return SamplingParams(
            **self._engine.sampling_defaults.merged(given, limit),
            structured_outputs=_constraint(parameters.response_format or {}),
        )


def _check_template(engine: AsyncEngine) -> None:
    if not engine.has_chat_template:
        raise ConfigError(no_chat_template(engine.model_name))


def _constraint(response_format: Mapping[str, Any]) -> StructuredOutputsParams | None:
    kind = response_format.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    return StructuredOutputsParams(json=(response_format.get("json_schema") or {}).get("schema"))


def _log_ignored(field: str, text: str) -> None:
    del field
    logger.warning("%s", text)


def _read(choice: int, delta: TextDelta, parser: SampleParser | None) -> AnswerPiece:
    if parser is None:
        return AnswerPiece(delta.text, "", choice, delta.finish_reason)
    pieces = parser.feed(delta)
    content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    reasoning = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    return AnswerPiece(content, reasoning, choice, delta.finish_reason)
