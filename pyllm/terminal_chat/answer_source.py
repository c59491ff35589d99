"""Sources of answers: the interface of a server and of an engine in this program. Knows neither of them."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from pyllm.parameters.arguments import check
from pyllm.parameters.sampling_params import SamplingParams

# A role and its content, as in OpenAI's API.
Message = Mapping[str, str]


class AnswerParameters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fields of a request under OpenAI's and vLLM's names. None: the default of the server or of the model's files.

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
    reasoning_effort: str | None = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        SamplingParams(**self.sampling())
        check("max_tokens", self.max_tokens, self.max_tokens != 0, "at least 1")

    def given(self) -> dict[str, Any]:
        """The fields that are set, as in a request over HTTP."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}

    def sampling(self) -> dict[str, Any]:
        """The fields that are set and that are those of `SamplingParams`, too."""
        return {name: value for name, value in self.given().items() if name not in NO_SAMPLING}


NO_SAMPLING = frozenset({"reasoning_effort", "response_format", "chat_template_kwargs"})


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    """The `response_format` of JSON that follows a schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


class TokenUsage(msgspec.Struct, frozen=True):
    """Token counts of a request: its prompt, the cached part of the prompt, and its answers."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int = 0


class AnswerPiece(msgspec.Struct, frozen=True):
    """More text of one choice, its finish reason, or, in a piece of its own, the token usage."""

    content: str = ""
    reasoning: str = ""
    choice: int = 0
    finish_reason: str | None = None
    usage: TokenUsage | None = None


class AnswerSource(Protocol):
    """A server, or an engine in this program. Call `start` first and `close` last."""

    @property
    def model(self) -> str:
        """The name of the model that answers."""

    @property
    def description(self) -> str:
        """The model and its place, for people to read."""

    @property
    def chat_template(self) -> str | None:
        """The model's chat template; None where the source does not know it."""

    async def check_chat(self) -> None:
        """Refuse a model that is known to take no messages; call it before `start`.

        Raises:
            PyllmError: the model has no chat template.
        """

    async def start(self) -> None:
        """Connect, or load the model.

        Raises:
            PyllmError: the source cannot answer.
        """

    async def models(self) -> list[str]:
        """The models that `select` takes; for an engine, only the current one."""

    async def select(self, name: str) -> None:
        """Switch to another model. If that fails, the previous one still answers, unless it was unloaded already.

        Raises:
            PyllmError: there is no such model, or it does not load.
        """

    def chat(self, messages: Sequence[Message], parameters: AnswerParameters) -> AsyncGenerator[AnswerPiece, None]:
        """The answer to a conversation. Closing the generator early ends the request.

        Raises:
            PyllmError: the request is refused, or failed.
        """

    def complete(self, prompt: str, parameters: AnswerParameters) -> AsyncGenerator[AnswerPiece, None]:
        """The continuation of a text; otherwise like `chat`."""

    async def close(self) -> None:
        """Release the source; may be called twice."""
