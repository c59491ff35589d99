"""What becomes of reasoning that is not to be separate, as SGLang's routers may ask."""

from typing import Any

import pytest

from pyllm.frontend.tokenizer import Tokenizer
from tests.frontend.openai.test_tools import CALLS, HERMES, WEATHER, chat, saying
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
