"""What becomes of reasoning that is not to be separate, and which field an error names beside a format."""

from array import array
from pathlib import Path
from typing import Any

import pytest

from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Submit
from tests.frontend.chat.parsers import family_texts
from tests.frontend.openai.test_tools import CALLS, HERMES, USER, WEATHER, chat, saying
from tests.frontend.serving import TEMPLATE, in_process
from tests.frontend.text import tiny_tokenizers

THOUGHT = "<think>Hm.</think>\n\n"
CLOCK = {"type": "function", "function": {"name": "clock"}}


@pytest.mark.parametrize("tools", [[], [WEATHER, CLOCK]])
async def test_reasoning_stays_in_the_content_as_it_was_written(
    tokenizer: Tokenizer, tools: list[dict[str, Any]]
) -> None:
    text = THOUGHT + (CALLS if tools else "Rome.")
    body = {"tools": tools} if tools else {}
    async with in_process(saying(tokenizer, text), tokenizer, HERMES + "{# </think> #}") as frontend:
        apart = (await chat(frontend, **body))["choices"][0]["message"]
        raw = (await chat(frontend, separate_reasoning=False, **body))["choices"][0]["message"]
    assert apart["reasoning"] == "Hm."
    assert raw["reasoning"] is None
    assert raw["content"] == THOUGHT + ("So:" if tools else "Rome.")
    assert len(raw.get("tool_calls", ())) == len(apart.get("tool_calls", ())) == len(tools)


async def test_an_error_about_a_form_names_the_field_that_asked_for_it(tokenizer: Tokenizer) -> None:
    form = {"response_format": {"type": "json_object"}}
    async with in_process(saying(tokenizer, "{}"), tokenizer, HERMES) as frontend:
        for body in ({"structured_outputs": {"regex": "a"}, **form}, {"ignore_eos": True, **form}):
            response = await frontend.http.post("/v1/chat/completions", json={"messages": [USER], **body})
            message = response.json()["error"]["message"]
            assert response.status_code == 400
            assert message.count("response_format") == 1


HARMONY = "{% if tools %}functions: {{ tools | tojson }}{% endif %}{# <|channel|>analysis, commentary #}" + TEMPLATE
CHANNELS = "<|channel|>analysis<|message|>Hm.<|channel|>"


@pytest.mark.parametrize("separate", [True, False])
async def test_gpt_oss_answers_in_channels_with_tools_or_without(tokenizer: Tokenizer, separate: bool) -> None:
    text = f"{CHANNELS}final<|message|>Rome."
    async with in_process(saying(tokenizer, text), tokenizer, HARMONY) as frontend:
        for body in ({}, {"tools": [WEATHER]}):
            answer = await chat(frontend, separate_reasoning=separate, **body)
            message = answer["choices"][0]["message"]
            assert message["content"] == ("Rome." if separate else "Hm.\n\nRome.")
            assert message.get("reasoning") == ("Hm." if separate else None)
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


async def test_gpt_oss_calls_in_its_channel_and_only_where_there_are_tools(tokenizer: Tokenizer) -> None:
    call = '{"city": "Rome"}'
    text = f"{CHANNELS}commentary to=functions.weather <|constrain|>json<|message|>{call}"
    async with in_process(saying(tokenizer, text), tokenizer, HARMONY) as frontend:
        choice = (await chat(frontend, tools=[WEATHER]))["choices"][0]
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": call}
        assert choice["finish_reason"] == "tool_calls"
        message = (await chat(frontend))["choices"][0]["message"]
        assert "tool_calls" not in message
        assert message["content"].endswith(call)


async def test_a_format_of_gpt_oss_is_that_of_its_final_message(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, "<|channel|>final<|message|>{}"), tokenizer, HARMONY) as frontend:
        await chat(frontend, response_format={"type": "json_object"})
        sampling = frontend.core.sent(Submit)[0].sampling
        assert "<|channel|>" in sampling.grammar


async def test_calls_of_qwen3_coder_have_the_types_of_their_schema(tokenizer: Tokenizer) -> None:
    parameters = {"type": "object", "properties": {"days": {"type": "integer"}, "city": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    text = family_texts.qwen(("days", "3"), ("city", "3"), name="weather")
    async with in_process(saying(tokenizer, text), tokenizer, HERMES + "{# <function= <parameter= #}") as frontend:
        choice = (await chat(frontend, tools=[tool]))["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"days": 3, "city": "3"}'


async def test_a_call_of_gpt_oss_ends_its_turn(tmp_path: Path) -> None:
    source = tiny_tokenizers.byte_level()
    source.add_special_tokens(["<|call|>", "<|return|>"])
    tokenizer = tiny_tokenizers.load(source, tmp_path)
    async with in_process(saying(tokenizer, "<|channel|>final<|message|>Yes"), tokenizer, HARMONY) as frontend:
        await chat(frontend, stop_token_ids=[7])
        stops = array("i", frontend.core.sent(Submit)[0].stop_token_ids)
    assert {7, *map(source.token_to_id, ("<|call|>", "<|return|>"))} <= set(stops)
