"""The fields that the requests of all generation routes share, OpenAI's Responses included.

`protocol.py` explains the marks of fields; `frontend/http/peer_fields.py` has fields that only other servers have.
"""

from typing import Any

from msgspec import Struct

from pyllm.frontend.http.ignored_fields import Hint, NoEffect
from pyllm.frontend.http.peer_fields import PeerFields
from pyllm.frontend.http.unsupported import Unsupported
from pyllm.sampling_params import (
    AllowedTokenIds,
    BadWords,
    FrequencyPenalty,
    IgnoreEos,
    IncludeStopStr,
    LogitBias,
    MinP,
    MinTokens,
    PresencePenalty,
    RepetitionPenalty,
    Seed,
    SkipSpecialTokens,
    StopTokenIds,
    Temperature,
    ThinkingTokenBudget,
    TopK,
    TopP,
)
from pyllm.scheduling_params import CacheSalt, Priority, Timeout, TpotTarget, TtftTarget


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
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    presence_penalty: PresencePenalty | None = None
    frequency_penalty: FrequencyPenalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: LogitBias | None = None
    allowed_token_ids: AllowedTokenIds | None = None
    bad_words: BadWords | None = None
    seed: Seed | None = None
    min_tokens: MinTokens | None = None
    stop_token_ids: StopTokenIds | None = None
    ignore_eos: IgnoreEos | None = None
    include_stop_str_in_output: IncludeStopStr | None = None
    skip_special_tokens: SkipSpecialTokens | None = None
    vllm_xargs: dict[str, Any] | None = None
    stream: bool | None = False
    priority: Priority | None = None
    timeout: Timeout | None = None
    ttft_target: TtftTarget | None = None
    tpot_target: TpotTarget | None = None
    cache_salt: CacheSalt | None = None
    request_id: str | None = None


class EngineRequest(SampledRequest, kw_only=True):
    """The fields that OpenAI's routes share with llama.cpp's."""

    stop: str | list[str] | None = None
    structured_outputs: StructuredOutputs | None = None
    thinking_token_budget: ThinkingTokenBudget | None = None

    user: str | None = None  # Names the tenant where nothing else does.
    prompt_cache_key: str | None = None  # Names the session where the header does not.
    prompt_cache_retention: str | None = None

    store: NoEffect = None
    metadata: NoEffect = None
    safety_identifier: NoEffect = None
    service_tier: NoEffect = None
