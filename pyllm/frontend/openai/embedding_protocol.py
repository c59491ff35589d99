"""The request and the response of `/v1/embeddings` as structs, with vLLM's additions. Knows no behaviour."""

from typing import Annotated, Any, Literal, TypeVar

from msgspec import Struct

from pyllm.frontend.http.ignored_fields import Hint
from pyllm.frontend.http.peer_fields import UseModel
from pyllm.frontend.http.unsupported import Unsupported, unsupported_field
from pyllm.parameters.arguments import declared
from pyllm.parameters.sampling_params import TruncatePromptTokens
from pyllm.parameters.scheduling_params import Priority, Timeout

T = TypeVar("T")
UseInput = Annotated[T | None, unsupported_field("input, a text as the chat template would write it")]
Dimensions = Annotated[int, declared("Keep so many numbers, scaled to length 1; for models trained so.", ge=1)]
UseDimensions = Annotated[int | None, unsupported_field("dimensions")]

MAX_INPUTS = 2048  # OpenAI's


class EmbeddingRequest(Struct, kw_only=True):
    """`POST /v1/embeddings`. `input` is a text or token ids, or a list of either.

    An input longer than `truncate_prompt_tokens` (-1: the context) keeps so many tokens: the last, or the first where
    `truncation_side` is right.
    """

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Dimensions | None = None
    truncate_prompt_tokens: TruncatePromptTokens | None = None
    truncation_side: Literal["left", "right"] | None = None
    add_special_tokens: bool | None = True
    priority: Priority | None = None
    timeout: Timeout | None = None

    user: str | None = None  # Names the tenant where nothing else does.

    cache_salt: Unsupported[str] = None
    request_id: Hint = None
    use_activation: Unsupported[bool] = True
    normalize: Unsupported[bool] = True
    embed_dtype: Unsupported[str] = "float32"
    endianness: Annotated[str | None, unsupported_field(None, "native")] = "little"
    padding: Annotated[str | None, unsupported_field(None, "do_not_pad")] = None
    embd_normalize: Unsupported[int] = 2  # llama.cpp's word for length 1
    output_dtype: Unsupported[str] = "float"
    output_dimension: UseDimensions = None
    truncate_dim: UseDimensions = None
    prompt_name: Unsupported[str] = None
    lora: UseModel = None
    lora_path: UseModel = None
    mm_processor_kwargs: Unsupported[dict[str, Any]] = {}
    media_io_kwargs: Unsupported[dict[str, Any]] = {}

    # Fields of vLLM's embeddings of conversations.
    messages: UseInput[list[Any]] = None
    chat_template: UseInput[str] = None
    chat_template_kwargs: UseInput[dict[str, Any]] = {}
    add_generation_prompt: UseInput[bool] = False
    continue_final_message: UseInput[bool] = False


class EmbeddingData(Struct):
    """One input's embedding: numbers, or the base64 of little-endian float32."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingUsage(Struct):
    """Tokens of all inputs together; there are no others."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct):
    """The answer, in the order of the inputs."""

    data: list[EmbeddingData]
    model: str
    usage: EmbeddingUsage
    id: str
    created: int
    object: str = "list"
