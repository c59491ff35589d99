"""Where answers come from: what a server and an engine inside have in common. Knows neither of them."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from pyllm.arguments import check
from pyllm.sampling_params import SamplingParams

# A role and its content, as OpenAI has them.
Message = Mapping[str, str]


class AnswerParameters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters under OpenAI's and vLLM's names. None: the default of the server or of the model's files.

    Raises:
        RequestError: a value is out of its range; the text has the range.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    n: int | None = None
    json_schema: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        SamplingParams(**self.sampling())
        check("max_tokens", self.max_tokens, self.max_tokens != 0, "at least 1")

    def given(self) -> dict[str, Any]:
        """Those that are set."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}

    def sampling(self) -> dict[str, Any]:
        """Those that are set, without the schema: fields of `SamplingParams`, and of a request over HTTP."""
        return {name: value for name, value in self.given().items() if name != "json_schema"}


class TokenUsage(msgspec.Struct, frozen=True):
    """How many tokens a request had: of its prompt (some of them cached), and of its answers."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int = 0


class AnswerPiece(msgspec.Struct, frozen=True):
    """More of one choice's answer, how it ended, or, in a piece of its own, what was used."""

    content: str = ""
    reasoning: str = ""
    choice: int = 0
    finish_reason: str | None = None
    usage: TokenUsage | None = None


class AnswerSource(Protocol):
    """A server, or an engine inside. `start` comes first, `close` last."""

    @property
    def model(self) -> str:
        """The name of the model that answers."""

    @property
    def description(self) -> str:
        """The model and where it is, for people."""

    async def check_chat(self) -> None:
        """Before `start`: refuse a model that is known to take no messages.

        Raises:
            PyllmError: it has no chat template.
        """

    async def start(self) -> None:
        """Connect, or load the model.

        Raises:
            PyllmError: it cannot answer.
        """

    async def models(self) -> list[str]:
        """The models that `select` takes; of an engine inside the one that it has."""

    async def select(self, name: str) -> None:
        """Let another model answer. If it cannot, the one before still does, unless its memory was needed.

        Raises:
            PyllmError: there is no such model, or it does not load.
        """

    def chat(self, messages: Sequence[Message], parameters: AnswerParameters) -> AsyncGenerator[AnswerPiece, None]:
        """The answer to a conversation. Leaving early ends the request.

        Raises:
            PyllmError: the request is refused, or failed.
        """

    def complete(self, prompt: str, parameters: AnswerParameters) -> AsyncGenerator[AnswerPiece, None]:
        """How a text goes on; as `chat` otherwise."""

    async def close(self) -> None:
        """End it; may be called twice."""
