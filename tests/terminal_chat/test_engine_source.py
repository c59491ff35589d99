import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import msgspec
import pytest

from pyllm import CompletionOutput
from pyllm.checkpoint.generation_config import SamplingDefaults
from pyllm.engine.async_engine import AsyncEngine
from pyllm.errors import ConfigError, StartError
from pyllm.frontend.chat.conversation import Conversation, Prepared
from pyllm.frontend.chat.parsers.sample_parser import SampleParser
from pyllm.frontend.text.outputs import RequestOutput
from pyllm.parameters.sampling_params import RequestOutputKind, SamplingParams
from pyllm.parameters.structured_outputs_params import StructuredOutputsParams
from pyllm.terminal_chat.answers import AnswerPiece, Fields
from pyllm.terminal_chat.engine_source import EngineSource
from pyllm.wire.server_client import PromptDetails, Usage

PLAIN: Fields = {}
MESSAGES = [{"role": "user", "content": "Hi"}]


class CharacterDecoder:
    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))


class ScriptedEngine:
    """Gives `texts` of each sample, one more at each output; a token has one character."""

    def __init__(self, name: str, texts: Sequence[Sequence[str]] = (("a", "b"),), **options: Any) -> None:
        self.model_name = name
        self.options = options
        self.texts = texts
        self.asked: list[tuple[Any, SamplingParams]] = []
        self.conversations: list[Conversation] = []
        self.log: list[str] = []

    @property
    def has_chat_template(self) -> bool:
        return self.model_name != "base"

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        return SamplingDefaults(temperature=0.6, top_k=20)

    def chat_preprocessor(self) -> "ScriptedEngine":
        return self

    async def prepare(self, conversation: Conversation, params: SamplingParams, ignore: object) -> Prepared:
        self.conversations.append(conversation)

        def make_parser() -> SampleParser:
            return SampleParser(None, lambda: cast(Any, CharacterDecoder()), thinks_opened=False)

        params = msgspec.structs.replace(params, skip_special_tokens=False)
        return Prepared([[1, 2, 3]], params, make_parser if self.options.get("thinks") else None)

    async def generate(self, prompt: Any, params: SamplingParams) -> AsyncGenerator[RequestOutput, None]:
        assert params.output_kind is RequestOutputKind.DELTA
        self.asked.append((prompt, params))
        length = max(map(len, self.texts))
        try:
            for place in range(length):
                outputs = [
                    CompletionOutput(
                        index, texts[place], [*texts[place].encode()], "stop" if place + 1 == len(texts) else None
                    )
                    for index, texts in enumerate(self.texts)
                    if place < len(texts)
                ]
                yield RequestOutput("r", None, [1, 2, 3], outputs, place + 1 == length, num_cached_tokens=2)
        finally:
            self.log.append("left")

    async def start(self) -> None:
        self.log.append("start")
        if self.model_name == "broken":
            raise StartError("no memory")

    async def close(self) -> None:
        self.log.append("close")


def source_of(name: str = "one", **options: Any) -> tuple[EngineSource, list[ScriptedEngine]]:
    made: list[ScriptedEngine] = []

    def make(name: str, **options: Any) -> AsyncEngine:
        made.append(ScriptedEngine(name, **options))
        return cast(AsyncEngine, made[-1])

    return EngineSource(name, options, make), made


async def answer(source: EngineSource, fields: Fields = PLAIN) -> list[AnswerPiece]:
    return [piece async for piece in source.answer(MESSAGES, fields)]


async def test_an_answer_comes_in_pieces_with_its_usage() -> None:
    source, (engine,) = source_of()
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True}}
    assert await answer(source, {"temperature": 0, "seed": 3, "response_format": schema}) == [
        AnswerPiece("a"),
        AnswerPiece("b", finish_reason="stop"),
        AnswerPiece(usage=Usage(3, 2, PromptDetails(2))),
    ]
    ((prompt, params),) = engine.asked
    assert prompt == [1, 2, 3]
    # What was not given stays the model's own.
    assert (params.temperature, params.seed, params.top_k, params.skip_special_tokens) == (0, 3, 20, False)
    assert params.structured_outputs == StructuredOutputsParams(json={"type": "object"})
    assert [*engine.conversations[0].messages] == MESSAGES


async def test_a_format_and_thinking_are_asked_for() -> None:
    source, (engine,) = source_of()
    thinks = {"enable_thinking": True}
    kinds = [{"type": "json_object"}, {"type": "text"}]
    for kind in kinds:
        await answer(source, {"response_format": kind, "chat_template_kwargs": thinks})
    constraints = [params.structured_outputs for _, params in engine.asked]
    assert constraints == [StructuredOutputsParams(json_object=True), None]
    assert engine.conversations[0].template_variables == thinks


async def test_reasoning_is_split_off() -> None:
    source, _ = source_of(thinks=True, texts=[["<think>", "hm", "</think>", "\n\n", "yes"]])
    pieces = await answer(source)
    assert "".join(piece.reasoning for piece in pieces) == "hm"
    assert "".join(piece.content for piece in pieces).strip() == "yes"
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["stop"]


async def test_a_completion_has_several_samples_of_different_lengths() -> None:
    source, (engine,) = source_of(texts=[["a"], ["b", "c"]])
    pieces = [piece async for piece in source.answer("x", {"n": 2})]
    assert pieces == [
        AnswerPiece("a", finish_reason="stop"),
        AnswerPiece("b", choice=1),
        AnswerPiece("c", choice=1, finish_reason="stop"),
        AnswerPiece(usage=Usage(3, 3, PromptDetails(2))),
    ]
    assert engine.asked[0][0] == "x"


async def test_leaving_an_answer_ends_its_request() -> None:
    source, (engine,) = source_of()
    pieces = source.answer(MESSAGES, PLAIN)
    await anext(pieces)
    await pieces.aclose()
    assert engine.log == ["left"]


async def test_an_answer_may_fill_the_context_unless_there_is_a_limit() -> None:
    source, (engine,) = source_of()
    await answer(source)
    await answer(source, {"max_tokens": 3})
    assert [params.max_tokens for _, params in engine.asked] == [None, 3]


async def test_another_model_takes_the_memory_of_the_first() -> None:
    source, made = source_of(block_size=16)
    await source.start(for_chat=True)
    await source.select("two")
    assert [engine.log for engine in made] == [["start", "close"], ["start"]]
    assert [engine.options for engine in made] == [{"block_size": 16}] * 2
    assert await source.models() == ["two"]
    with pytest.raises(StartError):
        await source.select("broken")
    assert source.model == "broken"  # A question fails now; another model may be selected.
    await source.select("three")
    await asyncio.sleep(0)
    assert made[-1].log == ["start"]


async def test_a_model_without_chat_template_is_refused_before_it_is_loaded() -> None:
    source, (engine,) = source_of("base")
    with pytest.raises(ConfigError, match=r"base has no chat template, .*: give one by --chat-template FILE"):
        await source.start(for_chat=True)
    assert engine.log == []
    await source.start(for_chat=False)
    assert engine.log == ["start"]
    chats, made = source_of("one")
    with pytest.raises(ConfigError, match="base has no chat template"):
        await chats.select("base")
    assert (chats.model, made[0].log) == ("one", [])
