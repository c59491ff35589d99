"""References to stored items, as Vercel's AI SDK sends them, stand for the items themselves."""

from array import array
from typing import Any

import pytest

from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Submit
from tests.frontend.anthropic.serving import CALLS, HERMES, ROOMY, SCHEMA
from tests.frontend.serving import Frontend, answering, in_process

USER = {"role": "user", "content": "Hi"}
TOOLS = [{"type": "function", "name": "weather", "parameters": SCHEMA}, {"type": "function", "name": "clock"}]


def reference(item: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "item_reference", "id": item["id"], **fields}


async def create(frontend: Frontend, **body: Any) -> dict[str, Any]:
    response = await frontend.http.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    created: dict[str, Any] = response.json()
    return created


async def refused(frontend: Frontend, *items: dict[str, Any], **body: Any) -> tuple[str, str]:
    response = await frontend.http.post("/v1/responses", json={"input": items, **body})
    assert response.status_code == 400, response.text
    return response.json()["error"]["param"], response.json()["error"]["message"]


def prompts(frontend: Frontend, tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.decode(array("i", submit.prompt).tolist(), False) for submit in frontend.core.sent(Submit)]


@pytest.mark.parametrize("request_id", ["one", "in_a_1"])
async def test_references_give_the_prompt_of_the_items(tokenizer: Tokenizer, request_id: str) -> None:
    async with in_process(answering(tokenizer, CALLS, ROOMY), tokenizer, HERMES) as frontend:
        first = await create(frontend, input=[USER], tools=TOOLS, request_id=request_id)
        outputs = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "sunny"}
            for item in first["output"]
            if item["type"] == "function_call"
        ]
        items = [{**item, "content": item.get("content")} for item in first["output"]]
        listed = await frontend.http.get(f"/v1/responses/{first['id']}/input_items")
        asked = {"type": "item_reference", "id": listed.json()["data"][0]["id"]}
        await create(frontend, input=[USER, *items, *outputs], tools=TOOLS)
        second = await create(frontend, input=[asked, *map(reference, items), *outputs], tools=TOOLS)
        untyped = [reference(item, type=None) for item in items]
        await create(frontend, input=[USER, *untyped, *outputs], tools=TOOLS)
        _, whole, *others = prompts(frontend, tokenizer)
        kept = await frontend.http.get(f"/v1/responses/{second['id']}/input_items", params={"order": "asc"})
    assert others == [whole, whole]
    assert whole.count("sunny") == 2
    kinds = ["message", "message", "function_call", "function_call", "function_call_output", "function_call_output"]
    assert [item["type"] for item in kept.json()["data"]] == kinds


async def test_what_is_not_stored_or_there_already_is_refused_by_name(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok", ROOMY), tokenizer) as frontend:
        first = await create(frontend, input=[USER], request_id="one")
        (item,) = first["output"]
        field, text = await refused(frontend, USER, {"type": "item_reference", "id": "msg_two_0"})
        assert (field, "no stored item 'msg_two_0'" in text) == ("input[1].id", True)
        for wrong in ("", "x", "msg_one_7", "msg_one"):
            assert (await refused(frontend, {"type": "item_reference", "id": wrong}))[0] == "input[0].id"
        field, text = await refused(frontend, reference(item), USER, reference(item))
        assert (field, "in the conversation already" in text) == ("input[2].id", True)
        again = await refused(frontend, reference(item), previous_response_id=first["id"])
        assert again[0] == "input[0].id"
        another = {"x-llm-d-inference-fairness-id": "another"}
        alien = await frontend.http.post("/v1/responses", json={"input": [reference(item)]}, headers=another)
        await frontend.http.delete("/v1/responses/resp_one")
        assert (await refused(frontend, reference(item)))[0] == "input[0].id"
    assert alien.status_code == 400
