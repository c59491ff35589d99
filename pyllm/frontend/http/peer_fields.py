"""Fields of other servers: an alias of one of ours, without effect, or refused by name as it changes the answer.

The table follows the documents of vLLM, SGLang, llama.cpp, Ollama, Mistral, LM Studio, TGI and transformers. Knows no
API: the struct of a body inherits the table, and a field that the struct declares itself has that API's meaning.
"""

import functools
import math
import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from pyllm.config.nearest_name import NEAR_NAMES, PEER_NAMES
from pyllm.errors import RequestError
from pyllm.frontend.http.ignored_fields import Hint
from pyllm.frontend.http.unsupported import Unsupported, is_unsupported, unsupported_field
from pyllm.parameters.arguments import check
from pyllm.parameters.sampling_params import (
    MAX_LOGIT_BIAS,
    MAX_LOGIT_BIAS_CHARACTERS,
    MaxTokens,
    MinTokens,
    N,
    RepetitionPenalty,
    Seed,
    ThinkingTokenBudget,
)

T = TypeVar("T")

_SAME_AS = "same_as"
_IS_ID = re.compile(r"\s*[+-]?\d+", re.ASCII)
_LONGEST_ID = 80  # characters
# The names of one field on other routes.
_OTHER_ROUTES = {"max_tokens": ("max_completion_tokens", "max_output_tokens")}


def same_as_ours(name: str) -> Meta:
    """The mark of a peer's name of one of our fields; `max_tokens` has another name on other routes."""
    own = PEER_NAMES[name]
    names = (own, *_OTHER_ROUTES.get(own, ()))
    return Meta(description=f"The same as {' or '.join(names)}.", extra={_SAME_AS: names})


UseLogprobs = Annotated[T | None, unsupported_field("logprobs")]
UseModel = Annotated[Any, unsupported_field("model, which may be an adapter's name", "", [], {})]
UseLogitBias = Annotated[Any, unsupported_field("logit_bias", "", [], {})]
UseReasoningEffort = Annotated[T | None, unsupported_field("reasoning_effort", True)]
UseSeparateFields = Annotated[T | None, unsupported_field("the fields in it, outside of it", {})]
UseStructuredOutputs = Annotated[T | None, unsupported_field("structured_outputs")]
UseSystemMessage = Annotated[T | None, unsupported_field("a message of the role system")]


class PeerFields(Struct, kw_only=True):
    """The table: each field is marked as `same_as_ours`, a `Hint`, or unsupported but for neutral values."""

    # vLLM, of one route each.
    extra_args: Annotated[dict[str, Any] | None, same_as_ours("extra_args")] = None
    best_of: Unsupported[int] = 1
    echo: Unsupported[bool] = False
    use_beam_search: Unsupported[bool] = False
    length_penalty: Unsupported[float] = 1.0
    prompt_logprobs: Unsupported[int] = None
    return_token_ids: Unsupported[bool] = False
    return_tokens_as_token_ids: Unsupported[bool] = False
    return_prompt_text: Unsupported[bool] = False
    logprob_token_ids: Unsupported[list[int]] = msgspec.field(default_factory=list)
    prompt_logprob_token_ids: Unsupported[list[int]] = msgspec.field(default_factory=list)
    spaces_between_special_tokens: Unsupported[bool] = True
    detokenize: Unsupported[bool] = True
    truncate_prompt_tokens: Unsupported[int] = None
    truncation_side: Unsupported[Any] = None
    thinking_token_budget: Annotated[int | None, unsupported_field("thinking.budget_tokens", -1)] = None
    repetition_detection: Unsupported[Any] = None
    watermarking: Annotated[bool | None, unsupported_field(None, False)] = None
    media_io_kwargs: Unsupported[dict[str, Any]] = msgspec.field(default_factory=dict)
    mm_processor_kwargs: Unsupported[dict[str, Any]] = msgspec.field(default_factory=dict)
    prompt_embeds: Unsupported[Any] = None
    kv_transfer_params: Unsupported[dict[str, Any]] = msgspec.field(default_factory=dict)
    ec_transfer_params: Unsupported[dict[str, Any]] = msgspec.field(default_factory=dict)
    routed_experts_prompt_start: Annotated[int | None, unsupported_field(None, 0)] = None
    guided_json: UseStructuredOutputs[Any] = None
    guided_regex: UseStructuredOutputs[str] = None
    guided_choice: UseStructuredOutputs[list[str]] = None
    guided_grammar: UseStructuredOutputs[str] = None
    guided_whitespace_pattern: UseStructuredOutputs[str] = None
    return_weight_versions: Unsupported[bool] = False
    enable_response_messages: Unsupported[bool] = False
    previous_input_messages: Unsupported[list[Any]] = msgspec.field(default_factory=list)
    structural_tag: Unsupported[Any] = None
    guided_decoding_backend: Hint = None
    session_id: Hint = None
    stream_interval: Hint = 1
    skip_reading_prefix_cache: Hint = False
    # Of the answers of vLLM's render routes.
    return_token_offsets: Hint = False
    mm_payload: Hint = "tensors"
    return_mm_kwargs: Hint = True

    # SGLang.
    no_stop_trim: Annotated[bool | None, same_as_ours("no_stop_trim")] = None
    min_new_tokens: Annotated[MinTokens | None, same_as_ours("min_new_tokens")] = None
    sampling_seed: Annotated[Seed | None, same_as_ours("sampling_seed")] = None
    rid: Annotated[str | None, same_as_ours("rid")] = None
    regex: UseStructuredOutputs[str] = None
    ebnf: UseStructuredOutputs[str] = None
    stop_regex: Annotated[Any, unsupported_field("stop", [])] = None
    input_ids: Annotated[Any, unsupported_field("prompt")] = None
    lora_path: UseModel = None
    extra_key: Annotated[Any, unsupported_field("cache_salt", "")] = None
    custom_logit_processor: Annotated[Any, unsupported_field("vllm_xargs", "")] = None
    custom_params: Annotated[Any, unsupported_field("vllm_xargs", {})] = None
    session_params: Annotated[Any, unsupported_field(None, {})] = None
    sampling_params: UseSeparateFields[Any] = None
    input_embeds: Annotated[Any, unsupported_field(None, [])] = None
    task: Unsupported[str] = None
    return_logprob: UseLogprobs[bool] = False
    top_logprobs_num: UseLogprobs[int] = 0
    token_ids_logprob: UseLogprobs[Any] = None
    return_hidden_states: Unsupported[Any] = False
    return_routed_experts: Unsupported[bool] = False
    routed_experts_start_len: Unsupported[int] = 0
    return_prompt_token_ids: Annotated[bool | None, unsupported_field("return_token_ids")] = False
    return_meta_info: Unsupported[bool] = False
    bootstrap_host: Unsupported[Any] = None
    bootstrap_port: Unsupported[Any] = None
    bootstrap_room: Unsupported[Any] = None
    return_cached_tokens_details: Hint = False
    stream_reasoning: Hint = True
    ngram_corpus_id: Hint = None
    custom_labels: Hint = None
    routed_dp_rank: Hint = None
    disagg_prefill_dp_rank: Hint = None
    data_parallel_rank: Hint = None
    images_config: Hint = None
    max_dynamic_patch: Hint = None
    min_dynamic_patch: Hint = None
    use_audio_in_video: Hint = False

    # llama.cpp; Ollama and LM Studio have some of them, too.
    repeat_penalty: Annotated[RepetitionPenalty | None, same_as_ours("repeat_penalty")] = None
    repeat_last_n: Hint = -1  # `use_own_names` refuses it beside a penalty.
    n_predict: Annotated[MaxTokens | None, same_as_ours("n_predict")] = None
    n_cmpl: Annotated[N | None, same_as_ours("n_cmpl")] = None
    grammar: UseStructuredOutputs[Any] = None
    grammar_lazy: UseStructuredOutputs[bool] = False
    grammar_triggers: Annotated[Any, unsupported_field("structured_outputs", [])] = None
    json_schema: UseStructuredOutputs[Any] = None
    typical_p: Unsupported[float] = 1.0
    top_n_sigma: Annotated[float | None, unsupported_field(None, 0.0)] = -1.0
    mirostat: Unsupported[int] = 0
    dry_multiplier: Unsupported[float] = 0.0
    xtc_probability: Unsupported[float] = 0.0
    dynatemp_range: Unsupported[float] = 0.0
    adaptive_target: Unsupported[float] = -1.0
    min_keep: Annotated[int | None, unsupported_field(None, 1)] = 0
    n_indent: Unsupported[int] = 0
    n_probs: UseLogprobs[int] = 0
    post_sampling_probs: Unsupported[bool] = False
    return_tokens: Annotated[bool | None, unsupported_field("return_token_ids")] = False
    lora: UseModel = None
    image_data: Annotated[Any, unsupported_field(None, [])] = None
    reasoning_format: Annotated[str | None, unsupported_field(None, "auto", "deepseek", "parsed")] = None
    thinking_forced_open: Unsupported[bool] = False
    thinking_budget_tokens: Annotated[ThinkingTokenBudget | None, same_as_ours("thinking_budget_tokens")] = None
    reasoning_budget: Annotated[ThinkingTokenBudget | None, same_as_ours("reasoning_budget")] = None
    reasoning_budget_tokens: Annotated[ThinkingTokenBudget | None, same_as_ours("reasoning_budget_tokens")] = None
    reasoning_budget_message: Annotated[str | None, unsupported_field(None, "")] = None
    thinking_budget_message: Annotated[str | None, unsupported_field(None, "")] = None
    parse_tool_calls: Unsupported[bool] = True
    prefill_assistant: Annotated[bool | None, unsupported_field("continue_final_message")] = True
    mirostat_tau: Hint = None
    mirostat_eta: Hint = None
    dry_base: Hint = None
    dry_allowed_length: Hint = None
    dry_penalty_last_n: Hint = None
    dry_sequence_breakers: Hint = None
    xtc_threshold: Hint = None
    dynatemp_exponent: Hint = None
    adaptive_decay: Hint = None
    samplers: Hint = None  # Each of them works by its own field; they have one order here.
    response_fields: Hint = msgspec.field(default_factory=list)
    t_max_predict_ms: Hint = 0
    t_max_prompt_ms: Hint = -1
    n_keep: Hint = 0
    n_discard: Hint = 0
    n_cache_reuse: Hint = 0
    id_slot: Hint = -1
    cache_prompt: Hint = True
    timings_per_token: Hint = False
    return_progress: Hint = False
    sse_ping_interval: Hint = None
    backend_sampling: Hint = False
    reasoning_budget_start_tag: Hint = None  # The tags are those of the reasoning parser.
    reasoning_budget_end_tag: Hint = None
    reasoning_budget_end_tags: Hint = None
    reasoning_control: Hint = False
    chat_format: Hint = None
    chat_parser: Hint = None
    generation_prompt: Hint = None
    grammar_type: Hint = None
    preserved_tokens: Hint = None
    verbose: Hint = False

    # Ollama, also of earlier versions.
    num_predict: Annotated[MaxTokens | None, same_as_ours("num_predict")] = None
    options: UseSeparateFields[Any] = None
    think: UseReasoningEffort[Any] = None
    reasoning: Hint = None
    system: UseSystemMessage[Any] = None
    template: Annotated[Any, unsupported_field("chat_template", "")] = None
    raw: Unsupported[bool] = False
    context: Annotated[Any, unsupported_field(None, [])] = None
    images: Annotated[Any, unsupported_field(None, [])] = None
    tfs_z: Unsupported[float] = 1.0
    keep_alive: Hint = None
    shift: Hint = None
    draft_num_predict: Hint = None
    num_ctx: Hint = None
    num_keep: Hint = 0
    num_batch: Hint = None
    num_gpu: Hint = None
    main_gpu: Hint = None
    num_thread: Hint = None
    numa: Hint = None
    low_vram: Hint = None
    use_mmap: Hint = None
    use_mlock: Hint = None
    penalize_newline: Hint = None

    # Mistral.
    random_seed: Annotated[Seed | None, same_as_ours("random_seed")] = None

    # LM Studio.
    max_output_tokens: Annotated[MaxTokens | None, same_as_ours("max_output_tokens")] = None
    system_prompt: UseSystemMessage[Any] = None
    integrations: Annotated[Any, unsupported_field("tools", [])] = None
    ttl: Hint = None
    draft_model: Hint = None
    context_length: Hint = None

    # TGI, transformers, and servers with their fields.
    max_new_tokens: Annotated[MaxTokens | None, same_as_ours("max_new_tokens")] = None
    max_length: Annotated[int | None, unsupported_field(NEAR_NAMES["max_length"])] = None
    min_length: Annotated[int | None, unsupported_field(NEAR_NAMES["min_length"], 0)] = None
    stop_sequences: Annotated[list[str] | None, same_as_ours("stop_sequences")] = None
    stop_strings: Annotated[str | list[str] | None, same_as_ours("stop_strings")] = None
    stopping_strings: Annotated[str | list[str] | None, same_as_ours("stopping_strings")] = None
    parameters: UseSeparateFields[Any] = None
    inputs: Annotated[Any, unsupported_field("prompt or messages")] = None
    truncate: Annotated[Any, unsupported_field("truncate_prompt_tokens", False)] = None
    do_sample: Annotated[bool | None, unsupported_field("temperature: 0")] = True
    return_full_text: Annotated[bool | None, unsupported_field("echo")] = False
    details: UseLogprobs[bool] = False
    decoder_input_details: Annotated[bool | None, unsupported_field("prompt_logprobs")] = False
    top_n_tokens: UseLogprobs[int] = 0
    watermark: Unsupported[Any] = False
    guideline: Annotated[Any, unsupported_field("chat_template_kwargs")] = None
    tool_prompt: UseSystemMessage[Any] = None
    mirostat_mode: Unsupported[int] = 0
    adapter_id: UseModel = None
    typical: Unsupported[float] = 1.0
    top_a: Unsupported[float] = 0.0
    tfs: Unsupported[float] = 1.0
    epsilon_cutoff: Unsupported[float] = 0.0
    eta_cutoff: Unsupported[float] = 0.0
    smoothing_factor: Unsupported[float] = 0.0
    penalty_alpha: Unsupported[float] = 0.0
    guidance_scale: Annotated[float | None, unsupported_field(None, 0.0)] = 1.0
    no_repeat_ngram_size: Unsupported[int] = 0
    encoder_repetition_penalty: Unsupported[float] = 1.0
    num_beams: Annotated[int | None, unsupported_field("use_beam_search")] = 1
    num_beam_groups: Unsupported[int] = 1
    diversity_penalty: Unsupported[float] = 0.0
    early_stopping: Unsupported[Any] = False
    suppress_tokens: UseLogitBias = None
    begin_suppress_tokens: Annotated[Any, unsupported_field(None, [])] = None
    custom_token_bans: UseLogitBias = None
    banned_tokens: UseLogitBias = None
    sequence_bias: UseLogitBias = None
    bad_words_ids: Annotated[Any, unsupported_field("bad_words", [])] = None
    banned_strings: Annotated[Any, unsupported_field("bad_words", "", [])] = None
    ban_eos_token: Annotated[bool | None, unsupported_field("ignore_eos")] = False
    forced_bos_token_id: Unsupported[int] = None
    forced_eos_token_id: Unsupported[Any] = None
    exponential_decay_length_penalty: Unsupported[Any] = None
    adapters: UseModel = None
    negative_prompt: Annotated[Any, unsupported_field(None, "")] = None


def use_own_names(body: Struct, default_penalty: float | None = None) -> dict[str, str]:
    """Copy a body's aliases to our fields. Gives the caller's name of each field that was set so.

    `default_penalty` is the model's own repetition penalty, for a body that has none.

    Raises:
        RequestError: two names of one field have different values, or a penalty would cover only a part of the text.
    """
    names = {}
    for theirs, owns in _renamed(type(body)):
        value = getattr(body, theirs)
        if value is None or value is False:
            continue
        for own, default in owns.items():
            if getattr(body, own) not in (default, value):
                text = f"{theirs} and {own} are one setting, and have two values; leave one of them out"
                raise RequestError(text, theirs)
        own = next(iter(owns))
        setattr(body, own, value)
        names[own] = theirs
    _check_window(body, default_penalty)
    return names


def use_bias_by_id(body: Struct, encode: Callable[[list[str]], list[list[int]]]) -> None:
    """Turn a body's biases into those of tokens: as in llama.cpp, a text stands for each of its tokens, and false bans.

    `encode` gives the tokens of texts.

    Raises:
        RequestError: a bias is true, a text has no tokens, or the texts are too long.
    """
    given = getattr(body, "logit_bias", None)
    if given is None:
        return
    pairs = given if isinstance(given, list) else [(_token_or_text(key), bias) for key, bias in given.items()]
    if any(bias is True for _, bias in pairs):
        raise RequestError("logit_bias has true for a token: give a number, or false, which bans it", "logit_bias")
    texts = list({key: None for key, _ in pairs if isinstance(key, str)})
    length, allowed = sum(map(len, texts)), f"texts of at most {MAX_LOGIT_BIAS_CHARACTERS} characters together"
    check("logit_bias", length, length <= MAX_LOGIT_BIAS_CHARACTERS, allowed)
    tokens_of = dict(zip(texts, encode(texts), strict=True)) if texts else {}
    biases: dict[int, float] = {}
    for key, bias in pairs:
        tokens = tokens_of[key] if isinstance(key, str) else [key]
        if not tokens:
            raise RequestError(f"logit_bias has {key!r:.80}, which has no tokens", "logit_bias")
        for token in tokens:
            biases[token] = biases.get(token, 0.0) + (-math.inf if bias is False else bias)
    body.logit_bias = {token: max(bias, -MAX_LOGIT_BIAS) for token, bias in biases.items()}  # type: ignore[attr-defined] # the field of `SampledRequest`


def _token_or_text(key: str) -> int | str:
    """The key of a bias in an object: a number is a token's id, as C's `strtol` reads it for llama.cpp."""
    return int(key) if len(key) <= _LONGEST_ID and _IS_ID.fullmatch(key) else key


def _check_window(body: Struct, default_penalty: float | None) -> None:
    window = getattr(body, "repeat_last_n", None)
    if window in (None, -1):
        return
    repetition = getattr(body, "repetition_penalty", None)
    penalties = [getattr(body, name, None) or 0.0 for name in ("frequency_penalty", "presence_penalty")]
    repetition = default_penalty if repetition is None else repetition
    if penalty := next(filter(None, [*penalties, None if repetition == 1.0 else repetition]), None):
        text = f"beside a penalty, here {penalty:g}, which looks at the whole text; got {window!r:.80}"
        raise RequestError(f"repeat_last_n can only be -1 {text}", "repeat_last_n")


@functools.cache
def _renamed(kind: type[Struct]) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Each alias in this struct: its name, and the defaults of our fields by their names."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    found = []
    for field in fields.values():
        for names in _same_names(field.type):
            own = [name for name in names if name in fields]
            supported = [name for name in own if not is_unsupported(fields[name].type)]
            if own:
                found.append((field.name, {name: fields[name].default for name in supported or own[:1]}))
    return tuple(found)


def _same_names(annotation: Any) -> list[tuple[str, ...]]:
    marks = [mark.extra or {} for mark in getattr(annotation, "__metadata__", ()) if isinstance(mark, Meta)]
    return [mark[_SAME_AS] for mark in marks if _SAME_AS in mark]
