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
from pyllm.frontend.text.outputs import CompletionOutput
from pyllm.frontend.text.templates import no_chat_template
from pyllm.parameters.sampling_params import RequestOutputKind, SamplingParams
from pyllm.parameters.structured_outputs_params import StructuredOutputsParams
from pyllm.terminal_chat.answers import AnswerPiece, Fields, Message, sampling_fields
from pyllm.wire.server_client import PromptDetails, Usage

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

    async def start(self, for_chat: bool) -> None:
        """Load the model, with a progress bar on stderr."""
        if for_chat:
            _check_template(self._engine)
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

    async def answer(self, prompt: str | Sequence[Message], fields: Fields) -> AsyncGenerator[AnswerPiece, None]:
        """Continue a text, or answer messages by the model's chat template, with the reasoning separated."""
        given = sampling_fields(fields)
        limit = given.pop("max_tokens", None)
        params = SamplingParams(
            **self._engine.sampling_defaults.merged(given, limit),
            output_kind=RequestOutputKind.DELTA,
            structured_outputs=_constraint(fields.get("response_format") or {}),
        )
        parsers: list[SampleParser] | None = None
        asked: Prompt
        if isinstance(prompt, str):
            asked = prompt
        else:
            conversation = Conversation(
                messages=prompt,
                reasoning_effort=fields.get("reasoning_effort"),
                template_variables=fields.get("chat_template_kwargs") or {},
            )
            prepared = await self._engine.chat_preprocessor().prepare(conversation, params, _log_ignored)
            asked, params = prepared.prompts[0], prepared.params
            if prepared.make_parser is not None:
                parsers = [prepared.make_parser() for _ in range(params.n)]
        num_tokens = 0
        async with contextlib.aclosing(self._engine.generate(asked, params)) as outputs:
            async for output in outputs:
                for sample in output.outputs:
                    num_tokens += len(sample.token_ids)
                    yield _read(sample, None if parsers is None else parsers[sample.index])
        details = PromptDetails(output.num_cached_tokens)
        yield AnswerPiece(usage=Usage(len(output.prompt_token_ids), num_tokens, details))

    async def close(self) -> None:
        """Stop the engine's processes."""
        await self._engine.close()


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


def _read(sample: CompletionOutput, parser: SampleParser | None) -> AnswerPiece:
    if parser is None:
        return AnswerPiece(sample.text, "", sample.index, sample.finish_reason)
    pieces = parser.feed(TextDelta(sample.text, sample.token_ids, sample.finish_reason))
    content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    reasoning = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    return AnswerPiece(content, reasoning, sample.index, sample.finish_reason)
