"""What programs give as prompts and conversations."""

from array import array
from typing import Any

import numpy as np
import pytest
import torch

from pyllm.client.prompt_tokens import PromptTokens
from pyllm.engine.prompts import Rendering, read_conversations, read_messages, read_prompt, read_prompts
from pyllm.errors import RequestError
from pyllm.parameters.scheduling_params import SchedulingParams

SCHEDULING = SchedulingParams(tenant="a")


def test_a_prompt_is_a_text_or_ids_or_a_dict_with_one_of_them() -> None:
    assert read_prompt("hi", SCHEDULING) == ("hi", "hi", SCHEDULING)
    assert read_prompt([1, 2], SCHEDULING) == ([1, 2], None, SCHEDULING)
    assert read_prompt({"prompt": "hi", "multi_modal_data": None}, SCHEDULING) == ("hi", "hi", SCHEDULING)
    salted = read_prompt({"prompt_token_ids": [1], "prompt": "kept for show", "cache_salt": "s"}, SCHEDULING)
    assert salted == ([1], "kept for show", SchedulingParams(tenant="a", cache_salt="s"))


@pytest.mark.parametrize(
    "ids", [(1, 2), range(1, 3), array("i", [1, 2]), np.array([1, 2]), torch.tensor([1, 2]), [np.int64(1), np.int32(2)]]
)
def test_ids_become_pythons_numbers(ids: Any) -> None:
    (read,) = (read_prompt(prompt, SCHEDULING).content for prompt in read_prompts(ids))
    assert list(read) == [1, 2]
    assert {type(token) for token in read} == {int}
    assert list(read_prompt({"prompt_token_ids": ids}, SCHEDULING).content) == [1, 2]


def test_packed_ids_stay_as_they_are() -> None:
    packed = PromptTokens(array("i", [1, 2]).tobytes())
    assert read_prompts(packed) == [packed]
    assert read_prompt(packed, SCHEDULING).content is packed


@pytest.mark.parametrize(
    "prompt",
    [
        *(None, 7, 1.5, True, b"hi", object()),
        *([1.5], [True], ["a", 1], [[1]], [None], [torch.tensor(1.5)], np.array([1.5]), np.array([[1]]), np.int64(3)),
        *({}, {"prompt": None}, {"prompt": "x", "multi_modal_data": {"image": 1}}, {"prompt": 5}, {"prompts": "x"}),
        *({"prompt_token_ids": "hi"}, {"prompt_token_ids": [1.5]}, {"prompt": "x", "cache_salt": 5}),
    ],
)
def test_nothing_else_is_a_prompt(prompt: Any) -> None:
    with pytest.raises(RequestError, match=r"prompt|multi_modal_data|cache_salt"):
        read_prompt(prompt, SCHEDULING)


def test_a_batch_is_a_list_of_prompts_or_one_alone() -> None:
    assert read_prompts("hi") == ["hi"]
    assert read_prompts({"prompt": "hi"}) == [{"prompt": "hi"}]
    assert read_prompts([1, 2]) == [[1, 2]]
    assert read_prompts(np.array([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    assert read_prompts(["a", [1], {"prompt": "b"}]) == ["a", [1], {"prompt": "b"}]
    assert read_prompts([]) == []
    for wrong in (None, 5, b"hi", {1, 2}, [5, "a"], [None], [1.5], object()):
        with pytest.raises(RequestError, match=r"^prompts must be") as refused:
            read_prompts(wrong)  # type: ignore[arg-type]  # that is what is tested
        assert refused.value.parameter == "prompts"


def test_parts_of_a_message_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, "b"]
    (message,) = read_messages([{"role": "user", "content": parts, "name": "me"}])
    assert message == {"role": "user", "content": "a\nb", "name": "me"}
    call = {"role": "assistant", "content": None, "tool_calls": []}
    assert read_messages([call]) == [call]


def test_a_batch_of_conversations() -> None:
    one = [{"role": "user", "content": "x"}]
    assert read_conversations(one) == [one]
    assert read_conversations([one, one]) == [one, one]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (None, "messages must be a list of dicts"),
        ("hi", "messages must be a list of dicts"),
        ([], "messages is empty"),
        ([[]], r"messages\[0\] is empty"),
        (["hi"], r"messages\[0\] must be a dict, got 'hi'"),
        ([{"role": "user", "content": "x"}, [1]], r"messages\[1\] must be a dict"),
        ([[{"role": "user", "content": "x"}], [{"rol": "user"}]], r"messages\[1\]\[0\] needs a role"),
        ([[{"role": "user", "content": "x"}], []], r"messages\[1\] is empty"),
        ([{"content": "x"}], r"messages\[0\] needs a role"),
        ([{"role": 5, "content": "x"}], "it has 5"),
        ([{"role": "user", "content": 5}], r"messages\[0\]\.content must be a text or a list of parts, got 5"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"messages\[0\]\.content\[0\] must be a text"),
    ],
)
def test_other_conversations_are_refused(messages: Any, text: str) -> None:
    with pytest.raises(RequestError, match=text) as refused:
        read_conversations(messages)
    assert refused.value.parameter == "messages"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("chat_template", 5), ("add_generation_prompt", "yes"), ("continue_final_message", None)),
        *(("tools", {"a": 1}), ("tools", ["a"]), ("chat_template_kwargs", [1]), ("chat_template_kwargs", {1: 2})),
    ],
)
def test_a_rendering_of_other_types_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"^{name}") as refused:
        Rendering(**{name: value})
    assert refused.value.parameter == name
