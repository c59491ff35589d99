"""Whole numbers written as floats are integers wherever an integer is wanted, and nothing else is taken for another."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from pyllm.errors import RequestError
from pyllm.frontend.anthropic.protocol import MessagesRequest
from pyllm.frontend.http.body_decoding import decode_body
from pyllm.frontend.openai.embedding_protocol import EmbeddingRequest
from pyllm.frontend.openai.protocol import ChatRequest, CompletionRequest
from pyllm.frontend.openai.tokenization import DetokenizeRequest
from pyllm.frontend.responses.protocol import ResponsesRequest
from tests.frontend.bodies import REQUESTS, bodies

MESSAGES = [{"role": "user", "content": "x"}]
CALL = {"id": "a", "index": 3, "function": {"name": "f", "arguments": {"x": 2.0}}}
INTEGERS: list[tuple[type[Struct], dict[str, Any]]] = [
    (ChatRequest, {"messages": MESSAGES, "max_tokens": 150, "top_k": 40, "seed": 42, "n": 1, "top_logprobs": 2}),
    (ChatRequest, {"messages": MESSAGES, "max_completion_tokens": -1, "allowed_token_ids": [1, 2], "priority": 1}),
    (ChatRequest, {"messages": [{"role": "assistant", "tool_calls": [CALL, CALL]}, *MESSAGES]}),
    (CompletionRequest, {"prompt": [1, 2, 3], "max_tokens": 2, "logprobs": 1}),
    (CompletionRequest, {"prompt": [[1, 2], "x", [3]], "logit_bias": {"5": 1}}),
    (ResponsesRequest, {"input": "x", "max_output_tokens": 7, "top_k": 2}),
    (MessagesRequest, {"messages": MESSAGES, "max_tokens": 7, "top_k": 2}),
    (EmbeddingRequest, {"input": "x", "dimensions": 8}),
    (DetokenizeRequest, {"tokens": [1, 2]}),
]


def with_floats(value: Any, kept: tuple[str, ...] = ("arguments",)) -> Any:
    match value:
        case bool():
            return value
        case int():
            return float(value)
        case dict():
            return {name: part if name in kept else with_floats(part) for name, part in value.items()}
        case list():
            return [with_floats(part) for part in value]
        case _:
            return value


@pytest.mark.parametrize(("kind", "body"), INTEGERS)
def test_whole_numbers_are_integers(kind: type[Struct], body: dict[str, Any]) -> None:
    expected = decode_body(msgspec.json.encode(body), kind)
    assert decode_body(msgspec.json.encode(with_floats(body)), kind) == expected


def test_what_is_no_integer_field_keeps_its_numbers() -> None:
    body = {"messages": MESSAGES, "n": 1.0, "temperature": 1.0, "vllm_xargs": {"mine": {"x": 2.0}}}
    decoded = decode_body(msgspec.json.encode(body), ChatRequest)
    assert (decoded.n, decoded.temperature) == (1, 1.0)
    assert isinstance(decoded.vllm_xargs["mine"]["x"], float)


@pytest.mark.parametrize(
    "body",
    [{"n": 1.5}, {"n": 1.0, "seed": 0.5}, {"allowed_token_ids": [1.0, 1.5]}, {"n": "1"}, {"n": True}, {"stop": 1.0}],
)
def test_other_values_are_refused_as_they_were(body: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_body(msgspec.json.encode({"messages": MESSAGES, **body}), ChatRequest)


@given(st.sampled_from(REQUESTS).flatmap(lambda kind: bodies(kind, st.just({})).map(lambda body: (kind, body))))
def test_any_body_decodes_with_floats_as_with_integers(case: tuple[type[Struct], dict[str, Any]]) -> None:
    kind, body = case
    text = msgspec.json.encode(body)
    assert decode_body(text, kind) == msgspec.json.decode(text, type=kind)
    decode_body(msgspec.json.encode(with_floats(body)), kind)


@pytest.mark.parametrize(
    ("fields", "text", "name"),
    [
        ({"temperature": 1e3}, "temperature must be from 0 to 100, got 1000.0", "temperature"),
        ({"top_p": 0}, "top_p must be above 0 and at most 1, got 0", "top_p"),
        ({"min_tokens": -1.0}, "min_tokens must be from 0 to 2147483647, got -1", "min_tokens"),
        ({"repeat_penalty": 0}, "repeat_penalty must be from 0.01 to 100, got 0", "repeat_penalty"),
    ],
)
def test_a_number_out_of_its_range_is_refused_with_the_range(fields: dict[str, float], text: str, name: str) -> None:
    with pytest.raises(RequestError) as refused:
        decode_body(msgspec.json.encode({"prompt": "x"} | fields), CompletionRequest)
    assert (str(refused.value), refused.value.parameter) == (text, name)


@pytest.mark.parametrize("last", ["1", "null", '"x"', "[]"])
def test_a_parameter_that_is_there_twice_is_refused_if_one_is_out_of_its_range(last: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="Expected `int` >= 1"):
        decode_body(f'{{"prompt": "x", "n": 0, "n": {last}}}'.encode(), CompletionRequest)
