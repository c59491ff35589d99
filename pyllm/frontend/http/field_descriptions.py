"""Descriptions of the request fields that work, for the OpenAPI document. Checks nothing.

Parameters of sampling and scheduling have theirs where they are declared, with their ranges, in `pyllm/parameters`;
`docs/http-api.md` says more.
"""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]


def describe_fields(name: str, schema: Json) -> None:
    """Put descriptions into the schema of a request's body; `name` is the name of its struct.

    A field that has a description already, such as one that is refused or without effect, keeps it.
    """
    for field, described in schema.get("properties", {}).items():
        # A parameter's own is below `anyOf`, as its type is one of two: null is the other.
        texts = [kind.pop("description") for kind in described.get("anyOf", ()) if "description" in kind]
        texts += [DESCRIPTIONS[key] for key in (f"{name}.{field}", field) if key in DESCRIPTIONS]
        if texts:
            described.setdefault("description", texts[0])


_GUIDED = "vLLM's older name of a part of structured_outputs."

# By the field's name, or by that of its struct and its own where it has another meaning there.
DESCRIPTIONS: Mapping[str, str] = {
    "model": "One of the names of /v1/models, adapters among them; may be left out.",
    "lora_name": "The name by which requests choose the adapter.",
    "lora_path": "A folder or GGUF file on the cores' machines, or a repository of the hub.",
    "load_inplace": "Whether it may replace an adapter of the same name.",
    "is_3d_lora_weight": "Only false: no expert has an adapter.",
    "lora_int_id": "Without an effect: adapters have names.",
    # What the request is about.
    "prompt": "A text or token ids, or a list of either: an answer for each.",
    "suffix": "What stands behind the answer: a model for code fills in what is between.",
    "input_prefix": "What stands before the answer.",
    "InfillRequest.prompt": "What stands between input_prefix and the answer.",
    "input_suffix": "What stands behind the answer.",
    "input_extra": "Other files for the model to read, nearest last.",
    "messages": "The conversation, in any order of roles.",
    "input": "A text, or a list of items: messages, calls and results.",
    **dict.fromkeys(
        ("EmbeddingRequest.input", "ClassifyRequest.input"), "A text or token ids, or a list of either; at most 2,048."
    ),
    "query": "The text that the documents are compared with.",
    "RerankRequest.documents": "Texts, or objects with a text; at most 2,048.",
    "return_documents": "Whether results have the documents' texts; the default.",
    "text_1": "A text, or a list of them.",
    "text_2": "Texts to score: with the one text_1, or one with each of as many.",
    **dict.fromkeys(("data_1", "queries"), "Other names of text_1."),
    **dict.fromkeys(("data_2", "ScoreRequest.documents", "items"), "Other names of text_2."),
    "use_activation": "Whether a classifier's numbers become scores; the default.",
    "system": "The system prompt, as a text or text blocks.",
    "instructions": "The system prompt.",
    "tools": "Tools that the model may call.",
    "tool_choice": "Whether tools are called: auto, none, required, or one by its name.",
    "MessagesRequest.tool_choice": "Whether tools are called: auto, any, none, or one by its name.",
    "CountTokensRequest.tool_choice": "As in /v1/messages.",
    "ProfileRequest.format": "A table of ops, or a trace for a viewer.",
    "parallel_tool_calls": "Whether one answer may have several calls.",
    "documents": "Documents for chat templates that read them.",
    "tokens": "Token ids of the model.",
    "previous_response_id": "The stored response that this one continues.",
    # How tokens are chosen.
    "use_beam_search": "Beam search with n beams; not streamed.",
    "structured_outputs": "A constraint on the answer: json, regex, choice or grammar.",
    "response_format": "JSON, or JSON of a schema, as at OpenAI.",
    "format": "Ollama's: json, or a JSON schema; not with response_format.",
    "text": "The form of the answer: its format, as at OpenAI.",
    "output_config": "The form of the answer: its format, as at Anthropic.",
    "output_format": "The older place of output_config.format.",
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), _GUIDED),
    "vllm_xargs": "Arguments of logits processors and samplers of other packages, by their names.",
    # How long the answer is, and where it ends.
    "stop": "Texts that end the answer, which does not have them; at most 1,024.",
    "stop_sequences": "Texts that end the answer, which does not have them.",
    "n_indent": "Least blanks before a line: the answer ends before one with fewer.",
    "t_max_predict_ms": "Time for the answer, once it has a line; 0 or less: no limit.",
    # What the answer shows.
    "stream": "Answer with server-sent events.",
    "stream_options": "What a stream carries besides the text.",
    "logprobs": "Log-probabilities of the tokens.",
    "echo": "Put the prompt before the answer; with max_tokens 0 the prompt alone.",
    "return_token_ids": "Give token ids beside texts.",
    "return_tokens_as_token_ids": "Name tokens token_id:ID in log-probabilities.",
    "return_tokens": "Give token ids beside the text.",
    "response_fields": "Leave out other fields; a part of one is timings/prompt_n.",
    "return_token_strs": "Give the tokens' texts, too.",
    "separate_reasoning": "SGLang's name of include_reasoning.",
    "include_reasoning": "Whether the answer has the reasoning.",
    "include": "Parts that are left out otherwise: log-probabilities, encrypted reasoning.",
    "encoding_format": "float or base64.",
    # Reasoning.
    "reasoning": "How much the model reasons, where its template reads it.",
    "reasoning_effort": "How much the model reasons, where its template reads it.",
    "think": "Ollama's name of reasoning_effort; false turns reasoning off.",
    "thinking": "disabled turns reasoning off, where the template can; budget_tokens of enabled bounds it.",
    # Of Ollama's API.
    "options": "How to answer: temperature, num_predict and Ollama's others.",
    "keep_alive": "In a catalogue: seconds, or 5m, for which the model stays loaded after this.",
    "raw": "Continue the prompt as it is, without the chat template.",
    "truncate": "Whether an input that is too long loses its end.",
    "name": "The older name of model.",
    **{
        f"{body}.stream": "Answer with lines, which are JSON each; the default."
        for body in ("OllamaChatRequest", "GenerateRequest", "PullRequest")
    },
    # How a prompt is made.
    "add_special_tokens": "Begin the prompt with the tokenizer's special tokens.",
    "add_generation_prompt": "End the prompt where the assistant's message begins; the default.",
    "continue_final_message": "Have the model continue the last message.",
    "chat_template": "A Jinja template for this request; needs --trust-request-chat-template.",
    "chat_template_kwargs": "Variables of the chat template.",
    "truncation_side": "left (the default) drops the prompt's beginning, right its end.",
    # The request among others.
    "request_id": "Part of the answer's id: 1 to 128 printable characters of ASCII.",
    "user": "Names the tenant, where no key does.",
    "metadata": "user_id names the tenant, where no key does.",
    "prompt_cache_key": "Names the session, which stays on one of several cores.",
    "prompt_cache_retention": "How long a KV store keeps the blocks: in_memory or 24h.",
    "background": "Run without a reader, until it is fetched, cancelled or deleted.",
    "store": "Keep the answer for later requests; the default.",
    "service_tier": "Without effect: there is one tier.",
    "thread": "A thread that the server would remember; refused, so that clients send all of it.",
}
