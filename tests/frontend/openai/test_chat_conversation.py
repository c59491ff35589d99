"""The histories that programs send to chat completions, each as the messages that a template is given."""

from array import array
from typing import Any

import pytest

from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Submit
from tests.frontend.anthropic.serving import ROOMY
from tests.frontend.ignoring import HEADER
from tests.frontend.serving import answering, in_process

USER = {"role": "user", "content": "Hi"}
SKY = {"type": "function", "function": {"name": "sky", "parameters": {"type": "object", "properties": {}}}}
# Shows all that a template is given of messages.
PLAIN = (
    "{% for m in messages %}[{{ m.role }}|{{ m.content }}|{{ m.tool_call_id }}|{{ m.name }}|{{ m.reasoning }}|"
    "{% for c in m.tool_calls or [] %}"
    "{{ c.id }}:{{ c.function.name }}:{{ c.function.arguments | tojson }};{% endfor %}]"
    "{% endfor %}{% if tools %}<tool_call>{{ tools[0].function.name }}{{ tools[0].function.description }}{% endif %}"
)
IMAGE = "[An image was here. Images are not supported yet.]"
RECORDING = "[A recording was here. Recordings are not supported yet.]"


def text(value: str, kind: str = "text") -> dict[str, str]:
    return {"type": kind, "text": value}


def call(name: str, call_id: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"id": call_id, "function": {"name": name, "arguments": {}}, **fields}


def result(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **fields}


async def header_and_prompt(tokenizer: Tokenizer, *messages: dict[str, Any]) -> tuple[str | None, str]:
    async with in_process(answering(tokenizer, "ok", ROOMY), tokenizer, PLAIN) as frontend:
        response = await frontend.http.post(
            "/v1/chat/completions", json={"messages": [USER, *messages], "tools": [SKY]}
        )
        assert response.status_code == 200, response.text
        (submit,) = frontend.core.sent(Submit)
    prompt = tokenizer.decode(array("i", submit.prompt).tolist(), False)
    return response.headers.get(HEADER), prompt.removeprefix("[user|Hi||||]").removesuffix("<tool_call>sky")


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ({"content": None, "refusal": "No."}, "No.|||"),
        ({"content": "Yes.", "refusal": "No."}, "Yes.\n\nNo.|||"),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, "No.|||"),
        ({"content": [text("a", "output_text"), text("b")]}, "a\nb|||"),
        ({"content": [{"type": "thinking", "thinking": [text("Hm.")]}, text("a")]}, "a|||Hm."),
        ({"content": [{"type": "thinking", "thinking": "Hm."}, text("a")]}, "a|||Hm."),
        ({"content": [text("Hm.", "reasoning"), {"type": "reasoning", "reasoning": "So."}]}, "|||Hm.\nSo."),
        ({"content": [text("a"), {"type": "image_url", "image_url": {"url": "data:x"}}]}, f"a\n{IMAGE}|||"),
        ({"content": [{"type": "hologram"}]}, "[A part of type hologram was here. It is not supported yet.]|||"),
        ({"content": {"answer": 42}}, '{"answer":42}|||'),
        ({"content": None, "audio": {"id": "audio_1"}}, f"{RECORDING}|||"),
        ({"content": "a", "audio": {"id": "audio_1", "transcript": "b", "data": "eA=="}}, "a\n\nb|||"),
    ],
)
async def test_an_answer_is_read_whatever_its_parts(tokenizer: Tokenizer, message: dict[str, Any], shown: str) -> None:
    assert await header_and_prompt(tokenizer, {"role": "assistant", **message}) == (None, f"[assistant|{shown}|]")


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (None, ""),
        ({"degrees": 5}, '{"degrees":5}'),
        ([text("See:"), {"type": "image_url", "image_url": {"url": "data:x"}}], f"See:\n{IMAGE}"),
        ([{"type": "image", "data": "eA==", "mimeType": "image/png"}], IMAGE),
        ([{"type": "file", "file": {"file_id": "x"}}], "[A document was here. Documents are not supported yet.]"),
        ([{"type": "resource", "resource": {"uri": "file:///a", "text": "the file"}}], "the file"),
        (
            [{"type": "resource", "resource": {"uri": "file:///a", "blob": "eA=="}}],
            "[A resource was here. Resources are not supported yet.]",
        ),
        ([{"type": "json", "json": {"degrees": 5}}], '{"json":{"degrees":5}}'),
        ([{"type": "json", "value": {"degrees": 5}}], '{"value":{"degrees":5}}'),
        ([text("odd", "oddity")], "odd"),
        ([{"type": "hologram"}], "[A part of type hologram was here. It is not supported yet.]"),
    ],
)
async def test_a_result_is_read_whatever_its_parts(tokenizer: Tokenizer, content: Any, shown: str) -> None:
    made = {"role": "assistant", "tool_calls": [call("see", "a")]}
    _, prompt = await header_and_prompt(tokenizer, made, result(content, tool_call_id="a"))
    assert prompt == f"[assistant|||||a:see:{{}};][tool|{shown}|a|||]"


@pytest.mark.parametrize("part", [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "file", "file": {}}])
@pytest.mark.parametrize("role", ["user", "system"])
async def test_a_users_image_is_refused_by_name(tokenizer: Tokenizer, role: str, part: dict[str, Any]) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        body = {"messages": [{"role": role, "content": [text("See:"), part]}]}
        response = await frontend.http.post("/v1/chat/completions", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"], part["type"] in error["message"]) == (
        400,
        "messages[0].content[1]",
        True,
    )


async def test_results_without_an_id_are_those_of_the_first_calls_without_a_result(tokenizer: Tokenizer) -> None:
    _, prompt = await header_and_prompt(
        tokenizer,
        {"role": "assistant", "tool_calls": [call("wind", type=""), call("rain", type=None), call("wind")]},
        result("of rain", tool_name="rain"),
        result("of wind"),
        result("of wind, too", tool_name="wind"),
        result("of nothing"),
    )
    assert prompt == (
        "[assistant|||||call_0:wind:{};call_1:rain:{};call_2:wind:{};]"
        "[tool|of wind|call_0|||][tool|of rain|call_1|rain||][tool|of wind, too|call_2|wind||][tool|of nothing||||]"
    )


async def test_a_result_with_an_id_answers_its_call(tokenizer: Tokenizer) -> None:
    made = {"role": "assistant", "tool_calls": [call("wind", "a"), call("wind", "b")]}
    _, prompt = await header_and_prompt(tokenizer, made, result("1", tool_call_id="a"), result("2"), made, result("3"))
    assert "[tool|1|a|||][tool|2|b|||]" in prompt
    assert prompt.endswith("[tool|3|a|||]")


async def test_the_older_form_of_a_call_and_its_result(tokenizer: Tokenizer) -> None:
    asked = {"role": "assistant", "content": None, "function_call": {"name": "wind", "arguments": '{"city": "Rome"}'}}
    header, prompt = await header_and_prompt(tokenizer, asked, {"role": "function", "name": "wind", "content": "none"})
    assert header is None
    assert prompt == '[assistant|||||call_0:wind:{"city": "Rome"};][tool|none|call_0|wind||]'
