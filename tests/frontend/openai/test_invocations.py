"""SageMaker's only route answers as the route does whose body it is given."""

from typing import Any

import pytest

from pyllm.frontend.text.tokenizer import Tokenizer
from tests.frontend.ignoring import HEADER
from tests.frontend.serving import answering, in_process


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/embeddings", {"input": "x"}),
        ("/v1/score", {"text_1": "x", "text_2": "y"}),
    ],
)
async def test_an_invocation_is_what_its_body_says(tokenizer: Tokenizer, route: str, body: dict[str, Any]) -> None:
    body |= {"nope": 1, "user": "x"}
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        answer = await frontend.http.post("/invocations", json=body)
        same = await frontend.http.post(route, json=body)
        wrong = await frontend.http.post("/invocations", json=body | {"model": 5})
    assert (answer.status_code, wrong.status_code) == (200, 400), answer.text
    assert answer.json()["object"] == same.json()["object"]
    assert answer.headers[HEADER] == same.headers[HEADER] == "nope"


async def test_an_invocation_of_nothing_says_what_there_is(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        for body, text in (({"model": "tiny"}, "give messages for a chat, prompt for a completion"), ([], "Expected")):
            answer = await frontend.http.post("/invocations", json=body)
            assert answer.status_code == 400
            assert text in answer.json()["error"]["message"]
        chat = {"stream": True, "messages": [{"role": "user", "content": "x"}]}
        streamed = await frontend.http.post("/invocations", json=chat)
    assert streamed.text.endswith("data: [DONE]\n\n")
