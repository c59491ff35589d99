"""llama.cpp's `/infill` and `/lora-adapters` as structs. Knows names and types, not behaviour."""

from typing import Literal

from msgspec import Struct

from pyllm.frontend.http.ignored_fields import NoEffect
from pyllm.frontend.openai.common_fields import EngineRequest
from pyllm.parameters.sampling_params import MaxTokens, N


class InfillFile(Struct, kw_only=True):
    """Another file, or a part of one, that the model reads first. Editors say when they took it, too."""

    text: str
    filename: str | None = None

    time: NoEffect = None


class InfillRequest(EngineRequest, kw_only=True):
    """`POST /infill`. The answer fills the gap between `input_prefix` with the `prompt`, and `input_suffix`.

    `max_tokens` 0 (llama.cpp's `n_predict`) only caches the prompt. The answer ends before a line with fewer than
    `n_indent` blanks, and after `t_max_predict_ms` from its first token on, once it has a line.
    """

    input_prefix: str | None = None
    input_suffix: str | None = None
    input_extra: list[InfillFile] | None = None
    prompt: str | None = None
    n: N | None = None
    max_tokens: MaxTokens | None = None
    n_indent: int | None = 0
    t_max_predict_ms: float | None = 0
    return_tokens: bool | None = False
    response_fields: list[str] | None = None


class InfillSettings(Struct):
    """The settings that made the text; `n_predict` -1 is no limit."""

    n_ctx: int
    n_predict: int
    n_indent: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repeat_penalty: float
    stop: list[str]
    ignore_eos: bool
    stream: bool


class Timings(Struct):
    """Tokens of the prompt that were cached and computed, those of the answer, and the time that each part took."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class InfillPiece(Struct):
    """New text of a stream."""

    index: int
    content: str
    tokens: list[int]
    stop: bool
    tokens_predicted: int
    tokens_evaluated: int


class Infill(Struct):
    """The answer of `/infill`, a list of these for several choices, and the last event of a choice in a stream."""

    index: int
    content: str
    tokens: list[int]
    stop: bool
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: InfillSettings
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: Literal["eos", "limit", "word"]
    stopping_word: str
    tokens_cached: int
    timings: Timings


class LoraAdapter(Struct):
    """An adapter of `GET /lora-adapters`. The `scale` for requests that do not name it is always 0."""

    id: int
    path: str
    scale: float = 0.0
