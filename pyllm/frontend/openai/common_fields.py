"""The fields that the requests of all generation routes share, OpenAI's Responses included.

`protocol.py` explains the marks of fields; `frontend/http/peer_fields.py` has fields that only other servers have.
"""

from typing import Any

from msgspec import Struct

from pyllm.frontend.http.ignored_fields import Hint, NoEffect
from pyllm.frontend.http.peer_fields import PeerFields
from pyllm.frontend.http.unsupported import Unsupported
from pyllm.parameters import sampling_params, scheduling_params


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


class SampledRequest(PeerFields, kw_only=True):
    """The fields that all generation routes share, Anthropic's included: sampling of a sample, and scheduling."""

    model: str | None = None
    temperature: sampling_params.Temperature | None = None
    top_p: sampling_params.TopP | None = None
    top_k: sampling_params.TopK | None = None
    min_p: sampling_params.MinP | None = None
    presence_penalty: sampling_params.PresencePenalty | None = None
    frequency_penalty: sampling_params.FrequencyPenalty | None = None
    repetition_penalty: sampling_params.RepetitionPenalty | None = None
    # The list is llama.cpp's.
    logit_bias: sampling_params.LogitBias | list[tuple[int | str, float | bool]] | None = None
    allowed_token_ids: sampling_params.AllowedTokenIds | None = None
    bad_words: sampling_params.BadWords | None = None
    seed: sampling_params.Seed | None = None
    min_tokens: sampling_params.MinTokens | None = None
    stop_token_ids: sampling_params.StopTokenIds | None = None
    ignore_eos: sampling_params.IgnoreEos | None = None
    include_stop_str_in_output: sampling_params.IncludeStopStr | None = None
    skip_special_tokens: sampling_params.SkipSpecialTokens | None = None
    vllm_xargs: dict[str, Any] | None = None
    stream: bool | None = False
    priority: scheduling_params.Priority | None = None
    timeout: scheduling_params.Timeout | None = None
    ttft_target: scheduling_params.TtftTarget | None = None
    tpot_target: scheduling_params.TpotTarget | None = None
    cache_salt: scheduling_params.CacheSalt | None = None
    request_id: str | None = None


class EngineRequest(SampledRequest, kw_only=True):
    """The fields that OpenAI's routes share with llama.cpp's."""

    stop: str | list[str] | None = None
    structured_outputs: StructuredOutputs | None = None
    thinking_token_budget: sampling_params.ThinkingTokenBudget | None = None

    user: str | None = None  # Names the tenant where nothing else does.
    prompt_cache_key: str | None = None  # Names the session where the header does not.
    prompt_cache_retention: str | None = None

    store: NoEffect = None
    metadata: NoEffect = None
    safety_identifier: NoEffect = None
    service_tier: NoEffect = None
