"""What becomes of reasoning that is not to be separate, and which field an error names beside a format."""

from typing import Any

import pytest

from pyllm.frontend.text.tokenizer import Tokenizer
from tests.frontend.openai.test_tools import CALLS, HERMES, USER, WEATHER, chat, saying
from tests.frontend.serving import in_process

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
    assert "reasoning" not in raw
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
