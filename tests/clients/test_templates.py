"""What programs send is answered whatever the model's chat template can render.

`make oracle` tries the templates of real models, which llama.cpp's source carries, and holds the page about them.
"""

import asyncio
from pathlib import Path

import httpx
import msgspec
import pytest

from pyllm.frontend.app import create_app
from pyllm.frontend.chat.parsers.parser_selection import parsers_of
from pyllm.frontend.chat.template_traits import template_traits
from pyllm.frontend.text.templates import ChatTemplate
from tests.clients.fixture import FOLDER, Fixture
from tests.clients.script import Script
from tests.clients.scripted_model import scripted_state
from tests.frontend.chat.conversations import ADJUSTMENTS, BARE_TOOL, FIRST, SHAPES, TOOL, as_sent, missing
from tests.frontend.chat.small_templates import SMALL_TEMPLATES

RECORDED = sorted(FOLDER.glob("*/*.json"))
PAGE = Path(__file__).parents[2] / "docs/clients.md"
REAL = sorted((Path(__file__).parents[2] / "build/llama/src/models/templates").glob("*.jinja"))


async def refused(template: ChatTemplate) -> list[str]:
    """The recorded requests that are not answered as they were recorded, with what was said."""
    state = await scripted_state(Script(), template=template)
    found = []
    async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(state)), base_url="http://test") as http:
        for path in RECORDED:
            fixture = Fixture.read(path)
            content = b"" if fixture.body is None else msgspec.json.encode(fixture.body)
            answer = await http.request(fixture.method, fixture.path, content=content, headers=fixture.headers)
            if answer.status_code != fixture.status:
                found.append(f"{path.parent.name}/{path.stem}: {answer.status_code} {answer.text}")
    state.client.close()
    return found


async def lost(template: ChatTemplate) -> list[str]:
    """The shapes of conversations of which a prompt lacks something, with that."""
    state = await scripted_state(Script(), template=template)
    found = []
    async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(state)), base_url="http://test") as http:
        for name, messages in SHAPES.items():
            for tools in ([], [TOOL, BARE_TOOL]):
                body = {"messages": as_sent(messages), "tools": tools or None}
                tokens = await http.post("/tokenize", json=body)
                if tokens.status_code != 200:
                    found.append(f"{name}: {tokens.text}")
                    continue
                prompt = state.tokenizer.decode(tokens.json()["tokens"], skip_special_tokens=False)
                found += [f"{name}: {text}" for text in missing(messages, tools, prompt)]
    state.client.close()
    return found


@pytest.mark.parametrize("name", SMALL_TEMPLATES)
async def test_recorded_requests_are_answered(name: str) -> None:
    assert await refused(ChatTemplate(SMALL_TEMPLATES[name].source, "<s>", "</s>")) == []


@pytest.mark.oracle
def test_the_page_has_what_is_adjusted_for_each_real_template() -> None:
    assert REAL, "there are no templates in build/llama: make oracle puts them there"
    rows = "\n".join(map(row, sorted(REAL, key=lambda path: path.stem.lower())))
    assert f"|---|---|---|---|\n{rows}\n\n" in PAGE.read_text(), f"its table must be\n{rows}"


def row(path: Path) -> str:
    """A template's row on the page: what `auto` finds, and what is adjusted where a conversation has it."""
    template = ChatTemplate(path.read_text(), "<s>", "</s>")
    parsers = parsers_of(template.source, template_traits(template, True).tools, "auto", "auto")
    traits = template_traits(template, not parsers.explains_tools)
    if parsers.explains_tools:
        traits = msgspec.structs.replace(traits, tools=False, tool_calls=False, tool_results=False)
    adjusted = ", ".join(f"`{name}`" for name in ADJUSTMENTS if not getattr(traits, name, True))
    return f"| {path.stem} | {parsers.tool_call} | {parsers.reasoning.replace('none', '')} | {adjusted} |"


@pytest.mark.oracle
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
async def test_real_templates_answer_recorded_requests_and_lose_no_word(path: Path) -> None:
    template = ChatTemplate(await asyncio.to_thread(path.read_text), "<s>", "</s>")
    assert await refused(template) == []
    assert await lost(template) == []


async def test_the_header_names_what_was_adjusted() -> None:
    state = await scripted_state(Script(), template=ChatTemplate(SMALL_TEMPLATES["short_ids"].source, "<s>", "</s>"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(state)), base_url="http://test") as http:
        messages = as_sent(SHAPES["result and user"])
        answer = await http.post("/v1/chat/completions", json={"model": "scripted", "messages": messages})
        assert answer.headers["pyllm-adjusted-messages"] == "user_after_result, call_ids"
        plain = await http.post("/v1/chat/completions", json={"model": "scripted", "messages": SHAPES["two users"][:1]})
        assert "pyllm-adjusted-messages" not in plain.headers
        # What Anthropic's clients send back of a call goes on, too.
        blocks = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": f"toolu_{FIRST}", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"toolu_{FIRST}", "content": "sun"}]},
        ]
        message = await http.post("/v1/messages", json={"model": "scripted", "max_tokens": 8, "messages": blocks})
        assert (message.status_code, message.headers["pyllm-adjusted-messages"]) == (200, "call_ids")
    state.client.close()


async def test_an_effort_that_the_template_refuses_has_no_effect() -> None:
    refusal = "{% if (reasoning_effort or 'high') != 'high' %}{{ raise_exception('high alone') }}{% endif %}"
    template = ChatTemplate(refusal + SMALL_TEMPLATES["any_role"].source, "<s>", "</s>")
    state = await scripted_state(Script(), template=template)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(state)), base_url="http://test") as http:
        body = {"model": "scripted", "messages": SHAPES["two users"][:1], "reasoning_effort": "medium"}
        answer = await http.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.headers["pyllm-ignored-fields"]) == (200, "reasoning_effort")
    state.client.close()
