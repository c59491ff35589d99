"""Ollama's requests and answers as structs. Knows names and types, not behaviour.

A field marked `Unsupported` passes at its neutral value only (`frontend/http/unsupported.py`). A `Hint` has no effect
(`frontend/http/ignored_fields.py`). Durations of answers are in nanoseconds.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from pyllm.frontend.http.ignored_fields import Hint
from pyllm.frontend.http.unsupported import Unsupported, unsupported_field
from pyllm.frontend.openai.common_fields import EngineRequest
from pyllm.frontend.openai.embedding_protocol import Dimensions
from pyllm.frontend.openai.protocol import ChatMessage, TopLogprobs
from pyllm.frontend.openai.tool_protocol import ToolDefinition
from pyllm.parameters.sampling_params import MaxTokens

Name = Annotated[str, Meta(min_length=1)]


class Options(EngineRequest, kw_only=True):
    """Ollama's options of an answer, and the engine's own by their names. `num_predict` 0 or -1 is no limit."""

    max_tokens: MaxTokens | None = None

    model: Unsupported[str] = None
    stream: Unsupported[bool] = None


class OllamaRequest(Struct, kw_only=True):
    """The fields that `/api/chat` and `/api/generate` share. `keep_alive` has an effect in a catalogue only."""

    model: Name
    options: Options | None = None
    stream: bool | None = True
    format: Literal["", "json"] | dict[str, Any] | None = None
    think: bool | str | None = None
    logprobs: bool | None = False
    top_logprobs: TopLogprobs | None = None

    keep_alive: Any = None
    truncate: Hint = True  # A prompt that is too long is refused, whatever it says.
    shift: Hint = True


class OllamaMessage(ChatMessage, kw_only=True):
    """One message of a conversation, in which `thinking` is the assistant's reasoning."""

    thinking: str | None = None
    images: Annotated[list[Any] | None, unsupported_field(None, [])] = None


class OllamaTool(ToolDefinition, kw_only=True):
    """A function that the model may call."""

    type: str = "function"


class OllamaChatRequest(OllamaRequest, kw_only=True):
    """`POST /api/chat`. Without messages it loads the model, or unloads it where `keep_alive` is 0."""

    messages: list[OllamaMessage] | None = None
    tools: list[OllamaTool] | None = None


class GenerateRequest(OllamaRequest, kw_only=True):
    """`POST /api/generate`. The prompt is a user's message, unless it is `raw` or has a `suffix` to lead to."""

    prompt: str | None = ""
    suffix: str | None = ""
    system: str | None = ""
    raw: bool | None = False

    template: Annotated[str | None, unsupported_field("--chat-template of the server")] = ""
    context: Annotated[list[Any] | None, unsupported_field("the messages of /api/chat", [])] = None
    images: Annotated[list[Any] | None, unsupported_field(None, [])] = None
    width: Hint = 0  # of pictures, which no model here draws
    height: Hint = 0
    steps: Hint = 0


class EmbedRequest(Struct, kw_only=True):
    """`POST /api/embed`. An input that is longer than the context loses its end, unless `truncate` is false."""

    model: Name
    input: str | list[str] | None = None
    truncate: bool | None = True
    dimensions: Dimensions | None = None

    options: Hint = msgspec.field(default_factory=dict)
    keep_alive: Any = None


class EmbeddingsRequest(Struct, kw_only=True):
    """`POST /api/embeddings`, the older route for one text."""

    model: Name
    prompt: str | None = ""

    options: Hint = msgspec.field(default_factory=dict)
    keep_alive: Any = None


class OllamaFunction(Struct):
    """A call's function; `index` counts the calls of one answer."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaToolCall(Struct):
    """A call of a tool, whole."""

    id: str
    function: OllamaFunction


class AnswerMessage(Struct, omit_defaults=True):
    """The assistant's message, or the new part of it."""

    role: str
    content: str
    thinking: str = ""
    tool_calls: list[OllamaToolCall] = msgspec.field(default_factory=list)


class Part(Struct, kw_only=True):
    """The fields of an answer, of each line of its stream, and of the last line, which has the figures."""

    model: str
    created_at: str
    done: bool = False
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[Any] | UnsetType = UNSET  # as OpenAI's chats have them


class ChatPart(Part, kw_only=True):
    """An answer of `/api/chat`, or a line of it."""

    message: AnswerMessage


class GeneratePart(Part, kw_only=True):
    """An answer of `/api/generate`, or a line of it."""

    response: str
    thinking: str | UnsetType = UNSET


class EmbedAnswer(Struct):
    """The answer of `/api/embed`, in the order of the inputs."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class EmbeddingsAnswerBody(Struct):
    """The answer of `/api/embeddings`."""

    embedding: list[float]


class ModelRequest(Struct, kw_only=True):
    """The name of a model, in either of its fields; `name` is the older one."""

    model: str | None = None
    name: str | None = None


class ShowRequest(ModelRequest, kw_only=True):
    """`POST /api/show`."""

    verbose: Hint = False
    system: Hint = None
    options: Hint = None
    template: Hint = None


class PullRequest(ModelRequest, kw_only=True):
    """`POST /api/pull`: a short name, or one of the Hugging Face hub."""

    stream: bool | None = True

    insecure: Hint = False  # Open WebUI always sets it.
    username: Hint = None
    password: Hint = None


class ModelDetails(Struct):
    """The kind of a model; a size is such as 135M or 7.6B."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class ModelEntry(Struct):
    """A model of `/api/tags`. `digest` tells other weights, not other names."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails


class RunningModel(Struct):
    """A model of `/api/ps`. Sizes are those of the weights; the server keeps it until it ends."""

    name: str
    model: str
    size: int
    digest: str
    details: ModelDetails
    expires_at: str
    size_vram: int
    context_length: int


class ModelEntries(Struct):
    """`GET /api/tags`."""

    models: list[ModelEntry]


class RunningModels(Struct):
    """`GET /api/ps`."""

    models: list[RunningModel]


class Shown(Struct):
    """`POST /api/show`. The template is in Jinja."""

    modelfile: str
    parameters: str
    template: str
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(Struct):
    """`GET /api/version`: the version of Ollama whose API this is. `GET /version` has pyllm's."""

    version: str


class PullProgress(Struct, omit_defaults=True):
    """A line of `/api/pull`. Bytes are those of one file."""

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0
