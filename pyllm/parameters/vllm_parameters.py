"""Parameters of vLLM's Python calls that are fixed here, and methods that do not exist here, with replacements.

Options of an engine are in `flags/keyword_settings.py`. Knows no request.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from pyllm.errors import RequestError
from pyllm.parameters.arguments import NamedParameters, shown


class Fixed(NamedTuple):
    """The allowed values, which have no effect, the default first, and the replacement for other values."""

    values: tuple[Any, ...]
    instead: str


# Fields of `SamplingParams`.
SAMPLING: Mapping[str, Fixed] = {
    "flat_logprobs": Fixed((False, None), "log-probabilities are a dict for each token"),
    "prompt_logprob_token_ids": Fixed((None, []), "ask for the likeliest tokens by prompt_logprobs"),
    "prompt_logprob_start": Fixed((None, 0), "take a slice of the output's prompt_logprobs"),
    "skip_reading_prefix_cache": Fixed((None, False), "give the prompt a cache_salt of its own"),
    "watermarking": Fixed((None, False), "outputs are not watermarked"),
    "repetition_detection": Fixed((None,), "use repetition_penalty or frequency_penalty"),
    "routed_experts_prompt_start": Fixed((0, None), "routed experts are not given"),
    "trace_decode_token_ids": Fixed((None,), "put the tokens into the prompt, and ask for prompt_logprobs"),
    "output_text_buffer_length": Fixed((0, None), "it follows from stop"),
    "best_of": Fixed((None, 1), "set n"),
    "guided_decoding": Fixed((None,), "use structured_outputs, a StructuredOutputsParams"),
    "logits_processors": Fixed((None, []), "they are entry points, whose arguments are in extra_args"),
}
# Fields of `StructuredOutputsParams`.
STRUCTURED_OUTPUTS: Mapping[str, Fixed] = {
    "disable_any_whitespace": Fixed((False, None), 'JSON is always written with ", " and ": " and no other whitespace'),
    "disable_additional_properties": Fixed((False, None), "put additionalProperties: false into the schema"),
    "whitespace_pattern": Fixed((None,), "write a grammar"),
    "structural_tag": Fixed((None,), "write a grammar, or give tools to the server"),
}
# Fields of `BeamSearchParams`.
BEAM_SEARCH: Mapping[str, Fixed] = {
    "structured_outputs": Fixed((None,), "use generate"),
    "allowed_token_ids": Fixed((None, []), "use generate"),
    "watermarking": Fixed((None, False), "outputs are not watermarked"),
}
# Fields of `PoolingParams`.
POOLING: Mapping[str, Fixed] = {
    "task": Fixed((None, "embed", "classify", "score"), "the method says it"),
    "step_tag_id": Fixed((None,), "models do not reward"),
    "returned_token_ids": Fixed((None, []), "models do not reward"),
    "requires_token_ids": Fixed((False,), "the output has the prompt's token ids"),
    "skip_reading_prefix_cache": Fixed((None, False), "give the prompt a cache_salt of its own"),
    "late_interaction_params": Fixed((None,), "a prompt has one embedding"),
    "late_chunking_params": Fixed((None,), "a prompt has one embedding"),
    "extra_kwargs": Fixed((None, {}), "give dimensions"),
}
# Arguments of the methods that take prompts, and fields of `PoolingParams` in some of them.
CALLS: Mapping[str, Fixed] = {
    "use_activation": Fixed((None, True), "embeddings always have length 1"),
    "dimensions": Fixed((None,), "the model's classes are all given"),
    "tokenization_kwargs": Fixed((None, {}), "encode the text by get_tokenizer(), and give the token ids"),
    "mm_processor_kwargs": Fixed((None, {}), "prompts are texts"),
    "pooling_params": Fixed((None,), "give dimensions"),  # where it is not a `PoolingParams`
    "trace_headers": Fixed((None, {}), "traces are of `pyllm serve`"),
    "reset_running_requests": Fixed((False,), "running requests keep their blocks: pause_generation ends them"),
    "prompt_text": Fixed((None,), "give a dict with prompt and prompt_token_ids"),
}
# Fields of `LoRARequest`.
LORA: Mapping[str, Fixed] = {
    "tensorizer_config_dict": Fixed((None, {}), "give the path of a folder of peft, or of a GGUF file"),
    "is_3d_lora_weight": Fixed((False, None), "adapters of experts are not supported"),
}
# Keys of a prompt that is a dict.
PROMPTS: Mapping[str, Fixed] = {
    "multi_modal_data": Fixed((None, {}), "prompts are texts"),
    "multi_modal_uuids": Fixed((None, {}), "prompts are texts"),
    "mm_processor_kwargs": Fixed((None, {}), "prompts are texts"),
    "prompt_embeds": Fixed((None,), "give the text or its token ids"),
    "token_type_ids": Fixed((None,), "give the text or its token ids"),
}


# Methods of vLLM's engines that do not exist here, with replacements.
METHODS: Mapping[str, str] = {
    "encode": "give prompts to embed; hidden states and rewards are not given",
    "reward": "models generate text and embed it, and do not reward",
    "apply_model": "the model is in the workers, which take no calls",
    "start_profile": "use EngineClient.profile or POST /admin/profile",
    "stop_profile": "a profile ends by itself",
    "preprocess_chat": "use AsyncEngine.render_chat",
    "reset_mm_cache": "prompts are texts",
    "llm_engine": "LLM has what it can do itself: generate, chat, get_metrics, get_tokenizer, ...",
    **dict.fromkeys(
        ("model_config", "vllm_config", "get_model_config", "get_vllm_config"),
        "the options are those that the engine was given; EngineClient.model and GET /model_info have the model's",
    ),
    "from_vllm_config": "use from_engine_args",
    "add_request": "use generate",
    "abort_request": "use abort of AsyncEngine or LLMEngine; Ctrl-C ends a call of LLM",
    "get_num_unfinished_requests": "use stats",
    "wait_for_requests_to_drain": "wait for the outputs of generate",
    "do_log_stats": "use get_summary or get_metrics",
    "is_tracing_enabled": "traces are of `pyllm serve`",
    "pin_lora": "adapters stay in memory as far as max_cpu_loras allows, and those of running requests always",
    "set_tokenizer": "the option tokenizer names another one",
    "get_world_size": "it is tensor_parallel_size times pipeline_parallel_size",
    "release_kv_cache_memory": "close the engine",
    **dict.fromkeys(
        ("enqueue", "enqueue_chat", "wait_for_completion"), "give all prompts to generate or chat, or use AsyncEngine"
    ),
    **dict.fromkeys(
        (
            *("init_weight_transfer_engine", "shutdown_weight_transfer_engine", "start_weight_update"),
            *("start_draft_weight_update", "finish_weight_update"),
            *("update_weight_version", "get_weight_version"),
        ),
        "give a path or arrays to update_weights of LLM or AsyncEngine",
    ),
    "update_weights": "use LLM or AsyncEngine",
}


class PoolingParams(msgspec.Struct, metaclass=NamedParameters, kw_only=True, forbid_unknown_fields=True):
    """Parameters of `LLM.embed`, `classify` and `score`, as in vLLM.

    `dimensions` shortens embeddings, if the model was trained for this. With `use_activation` false scores are the
    logits of a classifier.
    """

    dimensions: int | None = None
    use_activation: bool | None = None
    task: str | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
    requires_token_ids: bool = False
    skip_reading_prefix_cache: bool | None = None
    late_interaction_params: Any = None
    late_chunking_params: Any = None
    extra_kwargs: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        refuse_other_values(POOLING, {name: getattr(self, name) for name in POOLING})


def missing_method(owner: str, name: str) -> AttributeError:
    """The error for a missing attribute, with the replacement for a method of vLLM."""
    instead = METHODS.get(name)
    return AttributeError(f"{owner} has no {name}" + (f": {instead}" if instead else ""), name=name)


def refuse_other_values(fixed: Mapping[str, Fixed], given: Mapping[str, object]) -> None:
    """Refuse each parameter with a value that is not allowed.

    Raises:
        RequestError: with its name, and the replacement.
    """
    for name, value in given.items():
        values, instead = fixed[name]
        if not any(type(value) is type(known) and value == known for known in values):
            raise RequestError(f"{name} can only be {shown(values[0])} here, got {shown(value)}: {instead}", name)
