"""Fields of other servers mean what ours mean, have no effect, or are refused by name on every route."""

from typing import Any

import msgspec
import pytest
from msgspec import Meta, Struct

from pyllm.checkpoint.generation_config import SamplingDefaults
from pyllm.errors import RequestError
from pyllm.frontend.anthropic.protocol import MessagesRequest
from pyllm.frontend.http.ignored_fields import Hint
from pyllm.frontend.http.peer_fields import PeerFields, use_bias_by_id, use_own_names
from pyllm.frontend.http.unsupported import is_unsupported, refuse_unsupported
from pyllm.frontend.llama_cpp.protocol import InfillRequest
from pyllm.frontend.mistral.protocol import FimRequest
from pyllm.frontend.openai.protocol import ChatRequest, CompletionRequest
from pyllm.frontend.responses.protocol import ResponsesRequest
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.parameters.sampling_params import MAX_LOGIT_BIAS_CHARACTERS
from pyllm.wire.messages import Submit
from tests.frontend.ignoring import HEADER
from tests.frontend.serving import answering, in_process

USER = [{"role": "user", "content": "x"}]
BODIES: dict[type[Struct], dict[str, Any]] = {
    CompletionRequest: {"prompt": "x"},
    ChatRequest: {"messages": USER},
    ResponsesRequest: {"input": "x"},
    MessagesRequest: {"messages": USER, "max_tokens": 5},
    InfillRequest: {"input_prefix": "x"},
    FimRequest: {"prompt": "x"},
}
ROUTES = {
    "/v1/completions": BODIES[CompletionRequest],
    "/v1/chat/completions": BODIES[ChatRequest],
    "/v1/responses": BODIES[ResponsesRequest],
    "/v1/messages": BODIES[MessagesRequest],
}
# A value that asks for something, and one that asks for nothing.
REFUSED = {
    "top_n_sigma": (1.0, -1.0),
    "lora": ([{"id": 0, "scale": 1}], []),
    "n_probs": (5, 0),
    "return_routed_experts": (True, False),
    "mirostat": (2, 0),
    "typical_p": (0.5, 1.0),
    "xtc_probability": (0.5, 0.0),
    "dry_multiplier": (0.8, 0.0),
    "dynatemp_range": (0.5, 0.0),
    "min_keep": (3, 0),
    "system_prompt": ("Be brief.", None),
    "guideline": ("x", None),
    "tool_prompt": ("x", None),
    "stop_regex": ("a+", []),
    "sampling_params": ({"temperature": 0}, {}),
    "input_embeds": ([[1.0]], []),
    "inputs": ("x", None),
    "custom_logit_processor": ("x", None),
    "adapter_id": ("mine", None),
    "lora_path": ("mine", ""),
    "watermark": (True, False),
    "do_sample": (False, True),
    "truncate": (5, False),
    "top_n_tokens": (3, 0),
    "options": ({"temperature": 0}, {}),
    "parameters": ({"temperature": 0}, {}),
    "reasoning_format": ("none", "auto"),
    "reasoning_budget_message": ("Now the answer.", ""),
    "kv_transfer_params": ({"a": 1}, {}),
    "no_repeat_ngram_size": (3, 0),
    "guided_whitespace_pattern": (" ", None),
    "watermarking": (True, False),
    "return_weight_versions": (True, False),
    "previous_input_messages": ([{"role": "user"}], []),
    "mm_processor_kwargs": ({"a": 1}, {}),
    "suppress_tokens": ([5], []),
    "bad_words_ids": ([[5]], []),
    "custom_token_bans": ("5,6", ""),
    "forced_bos_token_id": (5, None),
    "adapters": (["mine"], []),
    "sequence_bias": ([[[5], -1.0]], []),
    "banned_strings": (["x"], []),
    "ban_eos_token": (True, False),
    "early_stopping": (True, False),
    "negative_prompt": ("x", ""),
}
SAME = {
    "repeat_penalty": (1.3, "repetition_penalty"),
    "no_stop_trim": (True, "include_stop_str_in_output"),
    "min_new_tokens": (2, "min_tokens"),
    "sampling_seed": (7, "seed"),
    "random_seed": (7, "seed"),
    "stop_sequences": (["e"], "stop"),
    "stop_strings": (["e"], "stop"),
    "stopping_strings": (["e"], "stop"),
    "extra_args": ({"mine": {"x": 1}}, "vllm_xargs"),
    "rid": ("mine", "request_id"),
    "n_predict": (3, "max_tokens"),
    "num_predict": (3, "max_tokens"),
    "max_new_tokens": (3, "max_tokens"),
    "max_output_tokens": (3, "max_tokens"),
    "n_cmpl": (2, "n"),
    "thinking_budget_tokens": (0, "thinking_token_budget"),
    "reasoning_budget": (5, "thinking_token_budget"),
    "reasoning_budget_tokens": (5, "thinking_token_budget"),
}


def decode(kind: type[Struct], **fields: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(BODIES[kind] | fields), type=kind)


def test_every_field_of_the_table_is_the_same_as_ours_a_hint_or_refused() -> None:
    for field in msgspec.structs.fields(PeerFields):
        marks = [mark for mark in getattr(field.type, "__metadata__", ()) if isinstance(mark, Meta)]
        is_same = any(mark.extra is not None and "same_as" in mark.extra for mark in marks)
        assert is_same + (field.type == Hint) + is_unsupported(field.type) == 1, field.name


@pytest.mark.parametrize("kind", BODIES)
def test_each_body_has_a_field_of_ours_for_each_that_is_the_same(kind: type[Struct]) -> None:
    for field in msgspec.structs.fields(kind):
        marks = [mark.extra or {} for mark in getattr(field.type, "__metadata__", ()) if isinstance(mark, Meta)]
        for names in [mark["same_as"] for mark in marks if "same_as" in mark]:
            assert set(names) & set(kind.__struct_fields__), field.name


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_the_answer_is_refused_by_name(kind: type[Struct], name: str) -> None:
    asks, neutral = REFUSED[name]
    refuse_unsupported(decode(kind, **{name: neutral}))
    refuse_unsupported(decode(kind, **{name: None}))
    with pytest.raises(RequestError, match=f"^{name} is not supported") as refused:
        refuse_unsupported(decode(kind, **{name: asks}))
    assert refused.value.parameter == name


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (CompletionRequest, "messages", USER),
        (CompletionRequest, "max_completion_tokens", 5),
        (CompletionRequest, "top_logprobs", 3),
        (ResponsesRequest, "messages", USER),
        (ResponsesRequest, "chat_template", "x"),
        (ResponsesRequest, "continue_final_message", True),
    ],
)
def test_so_is_what_another_route_takes(kind: type[Struct], name: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"^{name} is not supported"):
        refuse_unsupported(decode(kind, **{name: value}))


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("kind", [CompletionRequest, ChatRequest, InfillRequest])
def test_what_means_the_same_is_ours(kind: type[Struct], name: str) -> None:
    value, own = SAME[name]
    body = decode(kind, **{name: value})
    assert use_own_names(body) == {own: name}
    assert getattr(body, own) == value
    both = decode(kind, **{name: value, own: value})
    use_own_names(both)
    assert getattr(both, own) == value


@pytest.mark.parametrize("route", ROUTES)
async def test_biases_may_be_those_of_llama_cpp(tokenizer: Tokenizer, route: str) -> None:
    tokens = tokenizer.encode("Hello world", add_special_tokens=False)
    assert len(tokens) > 1
    forms: list[object] = [[[5, 1.5], [6, False], ["Hello world", -0.5]], {"5": 1.5, "6": False, "Hello world": -0.5}]
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        answers = [await frontend.http.post(route, json=ROUTES[route] | {"logit_bias": form}) for form in forms]
        wrong = [
            await frontend.http.post(route, json=ROUTES[route] | {"logit_bias": form})
            for form in ([[5, True]], {"Hello": True})
        ]
        submits = frontend.core.sent(Submit)
    assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
    assert [submit.sampling.logit_bias for submit in submits] == 2 * [{5: 1.5, 6: -100.0} | dict.fromkeys(tokens, -0.5)]
    for answer in wrong:
        assert answer.status_code == 400
        assert "or false, which bans it" in answer.json()["error"]["message"]


def biases(given: object, tokens_of: dict[str, list[int]]) -> dict[int, float]:
    body = decode(ChatRequest, logit_bias=given)
    use_bias_by_id(body, lambda texts: [tokens_of[text] for text in texts])
    kept: dict[int, float] = body.logit_bias
    return kept


def test_biases_of_one_token_add_up_and_a_ban_stays_one() -> None:
    tokens_of = {"ab": [1, 2], "bb": [2, 2], "7": [3]}
    assert biases([["ab", 1.0], ["bb", 0.25], [1, 2.0], ["7", 4.0]], tokens_of) == {1: 3.0, 2: 1.5, 3: 4.0}
    assert biases([["ab", False], [1, 50.0]], tokens_of) == {1: -100.0, 2: -100.0}
    assert biases({"ab": False, " 7": 50, "+2": 5}, tokens_of) == {1: -100.0, 2: -100.0, 7: 50.0}
    assert biases([], {}) == biases({}, {}) == {}


def test_a_text_without_tokens_and_texts_that_are_too_long_are_refused() -> None:
    with pytest.raises(RequestError, match="logit_bias has '', which has no tokens") as refused:
        biases([["", 1.0]], {"": []})
    assert refused.value.parameter == "logit_bias"
    long = "x" * MAX_LOGIT_BIAS_CHARACTERS
    assert biases({long: 1.0, "5": 1.0}, {long: [1]}) == {1: 1.0, 5: 1.0}
    with pytest.raises(RequestError, match="texts of at most 4096 characters together, got 4097"):
        biases([[long, 1.0], ["y", 1.0]], {})


def test_a_limit_of_tokens_has_the_name_that_each_api_has_for_it() -> None:
    response = decode(ResponsesRequest, n_predict=3)
    assert use_own_names(response) == {"max_output_tokens": "n_predict"}
    refuse_unsupported(response)
    message = decode(MessagesRequest, max_new_tokens=5)
    assert use_own_names(message) == {"max_tokens": "max_new_tokens"}


def test_two_names_of_one_field_with_two_values_are_refused() -> None:
    with pytest.raises(RequestError, match="repeat_penalty and repetition_penalty are one setting") as refused:
        use_own_names(decode(ChatRequest, repeat_penalty=1.1, repetition_penalty=1.2))
    assert refused.value.parameter == "repeat_penalty"
    for name in ("max_new_tokens", "n_predict", "max_output_tokens"):
        with pytest.raises(RequestError, match=f"{name} and max_completion_tokens are one setting"):
            use_own_names(decode(ChatRequest, max_completion_tokens=10, **{name: 5}))
        use_own_names(decode(ChatRequest, max_completion_tokens=5, **{name: 5}))
    given = decode(ChatRequest, no_stop_trim=False, include_stop_str_in_output=True)
    use_own_names(given)
    assert given.include_stop_str_in_output


def test_a_window_of_penalties_is_refused_where_there_is_a_penalty() -> None:
    use_own_names(decode(ChatRequest, repeat_last_n=64))
    use_own_names(decode(ChatRequest, repeat_last_n=64, repeat_penalty=1.0))
    use_own_names(decode(ChatRequest, repeat_last_n=-1, repeat_penalty=1.1))
    use_own_names(decode(ChatRequest, repeat_last_n=64, repeat_penalty=1.0), 1.05)
    with pytest.raises(RequestError, match=r"repeat_last_n can only be -1 beside a penalty, here 1\.1,.* got 64"):
        use_own_names(decode(ChatRequest, repeat_last_n=64, repeat_penalty=1.1))
    for name in ("frequency_penalty", "presence_penalty"):
        use_own_names(decode(ChatRequest, repeat_last_n=64, **{name: 0.0}))
        with pytest.raises(RequestError, match=r"repeat_last_n can only be -1 beside a penalty, here -0\.5,.* got 0"):
            use_own_names(decode(ChatRequest, repeat_last_n=0, **{name: -0.5}))


@pytest.mark.parametrize("route", ROUTES)
async def test_every_route_looks_at_the_table(tokenizer: Tokenizer, route: str) -> None:
    body = ROUTES[route]
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        refused = await frontend.http.post(route, json=body | {"top_n_sigma": 1.5})
        hinted = await frontend.http.post(route, json=body | {"keep_alive": "5m", "cache_prompt": True})
    assert (refused.status_code, hinted.status_code) == (400, 200), refused.text + hinted.text
    assert "top_n_sigma is not supported yet" in refused.json()["error"]["message"]
    assert hinted.headers[HEADER] == "keep_alive"


@pytest.mark.parametrize("route", ROUTES)
async def test_a_window_is_refused_beside_the_models_own_penalty(tokenizer: Tokenizer, route: str) -> None:
    sampling = SamplingDefaults(repetition_penalty=1.05)
    async with in_process(answering(tokenizer, "ok"), tokenizer, sampling=sampling) as frontend:
        refused = await frontend.http.post(route, json=ROUTES[route] | {"repeat_last_n": 64})
        taken = await frontend.http.post(route, json=ROUTES[route] | {"repeat_last_n": -1})
    assert (refused.status_code, taken.status_code) == (400, 200), refused.text
    assert "beside a penalty, here 1.05" in refused.json()["error"]["message"]


@pytest.mark.parametrize("route", list(ROUTES)[:3])
async def test_the_engine_gets_what_a_peers_name_says(tokenizer: Tokenizer, route: str) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        answer = await frontend.http.post(route, json=ROUTES[route] | {"repeat_penalty": 1.5, "n_predict": 3})
        wrong = await frontend.http.post(route, json=ROUTES[route] | {"repeat_penalty": 1000, "n_predict": 3})
        none = await frontend.http.post(route, json=ROUTES[route] | {"num_predict": -7})
        (submit,) = frontend.core.sent(Submit)
    assert answer.status_code == 200, answer.text
    assert (submit.sampling.repetition_penalty, submit.max_tokens) == (1.5, 3)
    assert wrong.json()["error"]["message"] == "repeat_penalty must be from 0.01 to 100, got 1000"
    assert wrong.json()["error"]["param"] == "repeat_penalty"
    assert none.json()["error"]["message"] == "num_predict must be at least 1, or -1 for no limit, got -7"


async def test_messages_name_what_they_have_not(tokenizer: Tokenizer) -> None:
    body = ROUTES["/v1/messages"] | {"n_cmpl": 2}
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        refused = await frontend.http.post("/v1/messages", json=body)
    assert refused.status_code == 400
    assert "n_cmpl is not supported yet" in refused.json()["error"]["message"]
    with pytest.raises(RequestError, match="thinking_token_budget is not supported; use thinking"):
        refuse_unsupported(decode(MessagesRequest, thinking_token_budget=5))
