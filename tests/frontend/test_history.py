"""The answer of any parser, cut anywhere, is the history of the next turn in each API."""

from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Submit
from tests.client.fake_core import MODEL
from tests.frontend.chat.conversations import spellings
from tests.frontend.chat.parsers import family_texts, texts
from tests.frontend.chat.small_templates import SMALL_TEMPLATES
from tests.frontend.serving import Frontend, answering, in_process
from tests.tiers import cases

ROOMY = msgspec.structs.replace(MODEL, max_model_len=10_000, kv_cache_tokens=10_000)
FORMS = {"hermes": texts.HERMES, "llama3_json": texts.LLAMA, "mistral": texts.MISTRAL, **family_texts.FAMILIES}
QUESTION = {"role": "user", "content": "the question"}
RESULT = "what the tool gave"


@st.composite
def answers(draw: st.DrawFn) -> tuple[str, str]:
    """The name of a form, and the beginning of a text in it."""
    kind = draw(st.sampled_from(sorted(FORMS)))
    text = draw(st.sampled_from([case.text for case in FORMS[kind]]))
    return kind, text[: draw(st.integers(0, len(text)))]


@settings(max_examples=cases(120), suppress_health_check=list(HealthCheck))
@given(answers(), st.sampled_from(sorted(SMALL_TEMPLATES)), st.booleans())
async def test_an_answer_is_history(tokenizer: Tokenizer, answer: tuple[str, str], template: str, ends: bool) -> None:
    kind, text = answer
    source, lacks = SMALL_TEMPLATES[template]
    server = ServerConfig(tool_call_parser="hermes" if "tools" in lacks else kind)
    length = len(tokenizer.encode(text, add_special_tokens=False)) + ends
    async with in_process(answering(tokenizer, text, ROOMY), tokenizer, source, server=server) as frontend:
        for two_turns in (chat, response, message):
            said = await two_turns(frontend, max(length, 1))
            prompt = tokenizer.decode(array("i", frontend.core.sent(Submit)[-1].prompt).tolist(), False)
            for word in said:
                assert any(spelling in prompt for spelling in spellings(word)), (word, prompt)


async def chat(frontend: Frontend, length: int) -> list[str]:
    """Two turns of `/v1/chat/completions`; what the first one's answer says."""
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in family_texts.SCHEMAS.items()
    ]
    body = {"max_tokens": length, "tools": tools}
    answer = await posted(frontend, "/v1/chat/completions", {**body, "messages": [QUESTION]})
    message = answer["choices"][0]["message"]
    calls = message.get("tool_calls", [])
    results = [{"role": "tool", "tool_call_id": call["id"], "content": RESULT} for call in calls]
    await posted(frontend, "/v1/chat/completions", {**body, "messages": [QUESTION, message, *results, QUESTION]})
    said = [word for call in calls for word in call_words(call["function"]["name"], call["function"]["arguments"])]
    return [message["content"] or "", *said]


async def response(frontend: Frontend, length: int) -> list[str]:
    """Two turns of `/v1/responses`."""
    tools = [
        {"type": "function", "name": name, "parameters": schema, "strict": False}
        for name, schema in family_texts.SCHEMAS.items()
    ]
    body = {"max_output_tokens": length, "tools": tools, "store": False}
    answer = await posted(frontend, "/v1/responses", {**body, "input": [QUESTION]})
    calls = [item for item in answer["output"] if item["type"] == "function_call"]
    results = [{"type": "function_call_output", "call_id": call["call_id"], "output": RESULT} for call in calls]
    await posted(frontend, "/v1/responses", {**body, "input": [QUESTION, *answer["output"], *results, QUESTION]})
    contents = [item["content"] for item in answer["output"] if item["type"] == "message"]
    said = [word for call in calls for word in call_words(call["name"], call["arguments"])]
    return [*(part["text"] for content in contents for part in content), *said]


async def message(frontend: Frontend, length: int) -> list[str]:
    """Two turns of `/v1/messages`."""
    tools = [{"name": name, "input_schema": schema} for name, schema in family_texts.SCHEMAS.items()]
    body = {"max_tokens": length, "tools": tools}
    answer = await posted(frontend, "/v1/messages", {**body, "messages": [QUESTION]})
    calls = [block for block in answer["content"] if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": RESULT} for call in calls]
    turn = {"role": "user", "content": [*results, {"type": "text", "text": "the question"}]}
    history = [QUESTION, {"role": "assistant", "content": answer["content"]}, turn]
    await posted(frontend, "/v1/messages", {**body, "messages": history})
    said = [word for call in calls for word in call_words(call["name"], msgspec.json.encode(call["input"]).decode())]
    return [*(block["text"] for block in answer["content"] if block["type"] == "text"), *said]


async def posted(frontend: Frontend, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    answer = await frontend.http.post(path, json={"model": "tiny", **body})
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=dict[str, Any])


def call_words(name: str, arguments: str) -> Iterator[str]:
    """The name and the texts of a call; the arguments themselves where they are no object."""
    yield name
    try:
        value = msgspec.json.decode(arguments)
    except ValueError:
        value = arguments
    yield from strings(value) if isinstance(value, dict) else [arguments]


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield key
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
