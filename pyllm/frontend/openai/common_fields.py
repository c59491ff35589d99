"""The fields that the requests of all generation routes share, OpenAI's Responses included.

`protocol.py` explains the marks of fields; `frontend/http/peer_fields.py` has fields that only other servers have.
"""

from typing import Any

from msgspec import Struct

from pyllm.frontend.http.ignored_fields import Hint, NoEffect
from pyllm.frontend.http.peer_fields import PeerFields
from pyllm.frontend.http.unsupported import Unsupported


class StructuredOutputs(Struct, kw_only=True):
    """A constraint on the output: exactly one of the constraints of `StructuredOutputsParams`."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    structural_tag: Unsupported[Any] = None
    whitespace_pattern: Unsupported[str] = None
    disable_any_whitespace: Unsupported[bool] = False
    disable_additional_properties: Unsupported[bool] = False
    disable_fallback: Hint = False


class EngineRequest(PeerFields, kw_only=True):
    """The fields that all generation routes share: the sampling of one sample, and the scheduling of the request."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    seed: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    thinking_token_budget: int | None = None
    vllm_xargs: dict[str, Any] | None = None
    stream: bool | None = False
    priority: int | None = None
    timeout: float | None = None
    ttft_target: float | None = None
    tpot_target: float | None = None
    cache_salt: str | None = None
    request_id: str | None = None

    user: str | None = None  # Names the tenant where nothing else does.
    prompt_cache_key: str | None = None  # Names the session where the header does not.
    prompt_cache_retention: str | None = None

    store: NoEffect = None
    metadata: NoEffect = None
    safety_identifier: NoEffect = None
    service_tier: NoEffect = None
