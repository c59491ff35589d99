"""Descriptions and ranges of the request fields that work, for the OpenAPI document. Checks nothing.

The ranges are those that `SamplingParams` and `SchedulingParams` check; `docs/http-api.md` says more.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pyllm.sampling_params import MAX_BAD_WORDS, MAX_LENGTH_PENALTY, MAX_LOGIT_BIAS, MAX_SAMPLES, REPETITION_PENALTIES

Json = dict[str, Any]

_DEFAULT = "; default: the model's own"
_INT32 = 2**31


class FieldDescription(NamedTuple):
    """The text, and the numbers that bound the value, under JSON Schema's names."""

    text: str
    bounds: Mapping[str, float] = {}


def describe_fields(name: str, schema: Json) -> None:
    """Put descriptions and ranges into the schema of a request's body; `name` is the name of its struct.

    A field that has a description already, such as one that is refused or without effect, keeps it.
    """
    for field, described in schema.get("properties", {}).items():
        known = DESCRIPTIONS.get(f"{name}.{field}") or DESCRIPTIONS.get(field)
        if known is None or "description" in described:
            continue
        described["description"] = known.text
        for kind in described.get("anyOf", [described]):
            if kind.get("type") in {"integer", "number"}:
                kind.update(known.bounds)


def _between(text: str, least: float, most: float) -> FieldDescription:
    return FieldDescription(text, {"minimum": least, "maximum": most})


def _from(text: str, least: float) -> FieldDescription:
    return FieldDescription(text, {"minimum": least})


_TOKENS = "Most tokens of the answer; without it, or with -1, as many as the context has room for."
_GUIDED = FieldDescription("vLLM's older name of a part of structured_outputs.")
_BIAS = f"What is added to the logits of tokens, by their ids; beyond {MAX_LOGIT_BIAS:g} it counts as that."

# By the field's name, or by that of its struct and its own where it has another meaning there.
DESCRIPTIONS: Mapping[str, FieldDescription] = {
    "model": FieldDescription("One of the names of /v1/models; may be left out."),
    # What the request is about.
    "prompt": FieldDescription("A text or token ids, or a list of either: an answer for each."),
    "suffix": FieldDescription("What stands behind the answer: a model for code fills in what is between."),
    "input_prefix": FieldDescription("What stands before the answer."),
    "InfillRequest.prompt": FieldDescription("What stands between input_prefix and the answer."),
    "input_suffix": FieldDescription("What stands behind the answer."),
    "input_extra": FieldDescription("Other files for the model to read, nearest last."),
    "messages": FieldDescription("The conversation, in any order of roles."),
    "input": FieldDescription("A text, or a list of items: messages, calls and results."),
    "EmbeddingRequest.input": FieldDescription("A text or token ids, or a list of either; at most 2,048."),
    "system": FieldDescription("The system prompt, as a text or text blocks."),
    "instructions": FieldDescription("The system prompt."),
    "tools": FieldDescription("Tools that the model may call."),
    "tool_choice": FieldDescription("Whether tools are called: auto, none, required, or one by its name."),
    "MessagesRequest.tool_choice": FieldDescription("Whether tools are called: auto, any, none, or one by its name."),
    "CountTokensRequest.tool_choice": FieldDescription("As in /v1/messages."),
    "parallel_tool_calls": FieldDescription("Whether one answer may have several calls."),
    "documents": FieldDescription("Documents for chat templates that read them."),
    "tokens": FieldDescription("Token ids of the model."),
    "previous_response_id": FieldDescription("The stored response that this one continues."),
    # How tokens are chosen.
    "temperature": _between(f"0 takes the likeliest token, higher ones are more random{_DEFAULT}.", 0, 100),
    "top_p": FieldDescription(
        f"Draw from the likeliest tokens that have this probability together{_DEFAULT}.",
        {"exclusiveMinimum": 0, "maximum": 1},
    ),
    "top_k": _between(f"Draw from so many of the likeliest tokens; 0 and -1: all{_DEFAULT}.", -1, _INT32 - 1),
    "min_p": _between(f"Draw from tokens with this share of the likeliest one's probability{_DEFAULT}.", 0, 1),
    "presence_penalty": _between("Taken from the logits of tokens that the answer has.", -2, 2),
    "frequency_penalty": _between("Taken from a token's logit for each time that the answer has it.", -2, 2),
    "repetition_penalty": _between(
        f"Divides logits of tokens that prompt or answer have; 1: none{_DEFAULT}.", *REPETITION_PENALTIES
    ),
    "logit_bias": FieldDescription(_BIAS),
    "allowed_token_ids": FieldDescription("Only these tokens can be chosen."),
    "bad_words": FieldDescription(f"Texts that the answer does not have; at most {MAX_BAD_WORDS}."),
    "seed": _between("Repeats a random answer; -1: a random one.", -(2**63), 2**64 - 1),
    "use_beam_search": FieldDescription("Beam search with n beams; not streamed."),
    "length_penalty": _between(
        "Of beam search: the power of the length that divides a beam's log-probability.",
        -MAX_LENGTH_PENALTY,
        MAX_LENGTH_PENALTY,
    ),
    "structured_outputs": FieldDescription("A constraint on the answer: json, regex, choice or grammar."),
    "response_format": FieldDescription("JSON, or JSON of a schema, as at OpenAI."),
    "format": FieldDescription("Ollama's: json, or a JSON schema; not with response_format."),
    "text": FieldDescription("The form of the answer: its format, as at OpenAI."),
    "output_config": FieldDescription("The form of the answer: its format, as at Anthropic."),
    "output_format": FieldDescription("The older place of output_config.format."),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), _GUIDED),
    "vllm_xargs": FieldDescription("Arguments of logits processors and samplers of other packages, by their names."),
    # How long the answer is, and where it ends.
    "n": _between("Answers for each prompt; at most --max-num-seqs.", 1, MAX_SAMPLES),
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), _from(_TOKENS, -1)),
    "MessagesRequest.max_tokens": FieldDescription("Most tokens of the answer."),
    "min_tokens": _between("Least tokens before the answer may end.", 0, _INT32 - 1),
    "stop": FieldDescription("Texts that end the answer, which does not have them; at most 1,024."),
    "stop_sequences": FieldDescription("Texts that end the answer, which does not have them."),
    "stop_token_ids": FieldDescription("Tokens that end the answer."),
    "ignore_eos": FieldDescription("Go on behind the model's end-of-sequence tokens."),
    "include_stop_str_in_output": FieldDescription("Leave the stop text in the answer."),
    "n_indent": FieldDescription("Least blanks before a line: the answer ends before one with fewer."),
    "t_max_predict_ms": FieldDescription("Time for the answer, once it has a line; 0 or less: no limit."),
    # What the answer shows.
    "stream": FieldDescription("Answer with server-sent events."),
    "stream_options": FieldDescription("What a stream carries besides the text."),
    "logprobs": FieldDescription("Log-probabilities of the tokens."),
    "CompletionRequest.logprobs": _from("So many of the likeliest tokens, with log-probabilities; -1: all.", -1),
    "top_logprobs": _from("So many of the likeliest tokens for each, with logprobs; -1: all.", -1),
    "logprob_token_ids": FieldDescription("With logprobs: tokens that come in place of the likeliest; at most 128."),
    "prompt_logprobs": FieldDescription(
        "So many of the likeliest tokens at each token of the prompt; -1: all; not streamed."
    ),
    "echo": FieldDescription("Put the prompt before the answer; with max_tokens 0 the prompt alone."),
    "skip_special_tokens": FieldDescription("Leave special tokens out of the text; the default."),
    "return_token_ids": FieldDescription("Give token ids beside texts."),
    "return_tokens_as_token_ids": FieldDescription("Name tokens token_id:ID in log-probabilities."),
    "return_tokens": FieldDescription("Give token ids beside the text."),
    "response_fields": FieldDescription("Leave out other fields; a part of one is timings/prompt_n."),
    "return_token_strs": FieldDescription("Give the tokens' texts, too."),
    "separate_reasoning": FieldDescription("SGLang's name of include_reasoning."),
    "include_reasoning": FieldDescription("Whether the answer has the reasoning."),
    "include": FieldDescription("Parts that are left out otherwise: log-probabilities, encrypted reasoning."),
    "encoding_format": FieldDescription("float or base64."),
    "dimensions": _from("Keep so many numbers, scaled to length 1; for models trained so.", 1),
    # Reasoning.
    "reasoning": FieldDescription("How much the model reasons, where its template reads it."),
    "reasoning_effort": FieldDescription("How much the model reasons, where its template reads it."),
    "thinking_token_budget": _from("Most tokens of reasoning, whose end is forced then; -1 is no limit.", -1),
    "think": FieldDescription("Ollama's name of reasoning_effort; false turns reasoning off."),
    "thinking": FieldDescription(
        "disabled turns reasoning off, where the template can; budget_tokens of enabled bounds it."
    ),
    # How a prompt is made.
    "add_special_tokens": FieldDescription("Begin the prompt with the tokenizer's special tokens."),
    "add_generation_prompt": FieldDescription("End the prompt where the assistant's message begins; the default."),
    "continue_final_message": FieldDescription("Have the model continue the last message."),
    "chat_template": FieldDescription("A Jinja template for this request; needs --trust-request-chat-template."),
    "chat_template_kwargs": FieldDescription("Variables of the chat template."),
    "truncate_prompt_tokens": _from("Cut a prompt to so many tokens; -1: to what the context has room for.", -1),
    "truncation_side": FieldDescription("left (the default) drops the prompt's beginning, right its end."),
    # The request among others.
    "priority": _between("Lower ones run earlier, by --scheduling-policy priority.", -_INT32, _INT32 - 1),
    "timeout": FieldDescription("Seconds after which the request ends.", {"exclusiveMinimum": 0}),
    "ttft_target": FieldDescription("Seconds to the first token that the policy aims at.", {"exclusiveMinimum": 0}),
    "tpot_target": FieldDescription("Seconds a token that the policy aims at.", {"exclusiveMinimum": 0}),
    "cache_salt": FieldDescription("Requests with other salts share no cached blocks."),
    "request_id": FieldDescription("Part of the answer's id: 1 to 128 printable characters of ASCII."),
    "user": FieldDescription("Names the tenant, where no key does."),
    "metadata": FieldDescription("user_id names the tenant, where no key does."),
    "prompt_cache_key": FieldDescription("Names the session, which stays on one of several cores."),
    "prompt_cache_retention": FieldDescription("How long a KV store keeps the blocks: in_memory or 24h."),
    "background": FieldDescription("Run without a reader, until it is fetched, cancelled or deleted."),
    "store": FieldDescription("Keep the answer for later requests; the default."),
    "service_tier": FieldDescription("Without effect: there is one tier."),
    "thread": FieldDescription("A thread that the server would remember; refused, so that clients send all of it."),
}
