"""What an answer tells of its prompt and its tokens: echo, token ids, tokens by their ids, prompts that are cut."""

from array import array
from typing import Any

import pytest

from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Submit
from tests.frontend.serving import TEMPLATE, Frontend, answering, events, in_process

WORDS = "one two three"


async def complete(frontend: Frontend, **body: Any) -> dict[str, Any]:
    response = await frontend.http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def stream(frontend: Frontend, **body: Any) -> list[dict[str, Any]]:
    response = await frontend.http.post("/v1/completions", json={"stream": True, **body})
    assert response.status_code == 200, response.text
    return [choice for event in events(response.text) for choice in event["choices"]]


async def test_an_echo_precedes_each_choice(tokenizer: Tokenizer) -> None:
    body = {"prompt": ["Hello ", "x"], "n": 2, "echo": True}
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        answer = await complete(frontend, **body)
        choices = await stream(frontend, **body)
        (of_ids,) = (await complete(frontend, prompt=tokenizer.encode("Paris"), echo=True))["choices"]
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == ["Hello ok", "Hello ok", "xok", "xok"]
    assert ["".join(each["text"] for each in choices if each["index"] == index) for index in range(4)] == texts
    assert of_ids["text"] == "Parisok"


@pytest.mark.parametrize(("max_tokens", "output"), [(0, []), (1, ["o"]), (5, ["o", "k", "<|end|>"])])
async def test_log_probabilities_begin_with_the_prompts(
    tokenizer: Tokenizer, max_tokens: int, output: list[str]
) -> None:
    body = {"prompt": "Hello!?", "echo": True, "logprobs": 1, "max_tokens": max_tokens}
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        (choice,) = (await complete(frontend, **body))["choices"]
        (plain,) = (await complete(frontend, **body | {"echo": False, "max_tokens": max_tokens or 1}))["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"] == "Hello!?" + "ok"[:max_tokens]
    assert choice["prompt_logprobs"] is None
    assert logprobs["tokens"] == ["Hello", "!", "?", *output]
    assert logprobs["token_logprobs"] == [None] + [-1.0] * (2 + len(output))
    assert logprobs["text_offset"] == [0, 5, 6, 7, 8, 9][: 3 + len(output)]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][1] == {"!": -1.0, tokenizer.token_text(30): -0.5}
    if max_tokens:
        assert logprobs["top_logprobs"][3:] == plain["logprobs"]["top_logprobs"]


async def test_echo_with_log_probabilities_is_not_for_streams(tokenizer: Tokenizer) -> None:
    body = {"prompt": "x", "echo": True, "logprobs": 1}
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        streamed = await frontend.http.post("/v1/completions", json=body | {"stream": True})
        other_count = await frontend.http.post("/v1/completions", json=body | {"prompt_logprobs": 2})
        answer = await complete(frontend, **body | {"prompt_logprobs": 1})
    assert (streamed.status_code, streamed.json()["error"]["param"]) == (400, "echo")
    assert (other_count.status_code, other_count.json()["error"]["param"]) == (400, "prompt_logprobs")
    assert answer["choices"][0]["prompt_logprobs"] == [None]


async def test_token_ids_are_told_of_prompt_and_output(tokenizer: Tokenizer) -> None:
    output = [*tokenizer.encode(WORDS), 0]
    async with in_process(answering(tokenizer, WORDS), tokenizer) as frontend:
        (choice,) = (await complete(frontend, prompt="Hello", return_token_ids=True, max_tokens=50))["choices"]
        chunks = await stream(frontend, prompt="Hello", return_token_ids=True, max_tokens=50)
    assert (choice["prompt_token_ids"], choice["token_ids"]) == (tokenizer.encode("Hello"), output)
    assert choice["text"] == WORDS
    assert chunks[0]["prompt_token_ids"] == tokenizer.encode("Hello")
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])
    assert [token for chunk in chunks for token in chunk["token_ids"]] == output


async def test_a_token_that_completes_no_character_is_told_when_it_comes(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "🙂"), tokenizer) as frontend:
        chunks = await stream(frontend, prompt="x", return_token_ids=True)
    assert [len(chunk["token_ids"]) for chunk in chunks] == [0, 1, 1, 1, 1, 1]
    assert [chunk["text"] for chunk in chunks] == ["", "", "", "", "🙂", ""]


async def test_tokens_may_be_called_by_their_ids(tokenizer: Tokenizer) -> None:
    body = {"prompt": "Hello", "logprobs": 1, "echo": True, "return_tokens_as_token_ids": True}
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        (choice,) = (await complete(frontend, **body))["choices"]
    tokens = [*tokenizer.encode("Hello"), *tokenizer.encode("ok"), 0]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in tokens]
    assert choice["logprobs"]["top_logprobs"][1] == {f"token_id:{tokens[1]}": -1.0, "token_id:30": -0.5}
    assert choice["logprobs"]["text_offset"] == [0, 5, 6, 7]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"truncate_prompt_tokens": 3}, slice(-3, None)),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, slice(3)),
        ({"truncate_prompt_tokens": -1, "max_tokens": 20}, slice(-(256 - 20), None)),
        ({"truncate_prompt_tokens": -1, "max_tokens": 20, "truncation_side": "right"}, slice(256 - 20)),
    ],
)
async def test_a_prompt_that_is_too_long_may_be_cut(tokenizer: Tokenizer, options: dict[str, Any], kept: slice) -> None:
    prompt = " ".join(map(str, range(200)))
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        answer = await complete(frontend, prompt=[prompt, "x"], echo=True, **options)
    long, short = frontend.core.sent(Submit)
    expected = tokenizer.encode(prompt)[kept]
    assert array("i", long.prompt).tolist() == expected
    assert array("i", short.prompt).tolist() == tokenizer.encode("x")
    assert [choice["text"] for choice in answer["choices"]] == [tokenizer.decode(expected) + "ok", "xok"]


async def test_a_salt_and_an_id_go_with_the_request(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        answer = await complete(frontend, prompt="x", cache_salt="secret", request_id="my-1")
    (submit,) = frontend.core.sent(Submit)
    assert submit.cache_salt == "secret"
    assert answer["id"] == "cmpl-my-1"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/responses", {"input": "x"}),
    ],
)
async def test_how_long_its_cache_is_kept_goes_with_the_request(
    tokenizer: Tokenizer, path: str, body: dict[str, Any]
) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer, TEMPLATE) as frontend:
        headers = []
        for retention in (None, "in_memory", "24h", "7d"):
            answer = await frontend.http.post(path, json=body | {"prompt_cache_retention": retention})
            headers.append((answer.status_code, answer.headers.get("pyllm-ignored-fields")))
    assert [submit.kv_cache_retention for submit in frontend.core.sent(Submit)] == ["default", "none", "long"]
    # Without a store nothing is kept longer, which the answer says.
    assert headers == [(200, None), (200, None), (200, "prompt_cache_retention"), (400, None)]
    assert answer.json()["error"]["param"] == "prompt_cache_retention"


async def test_an_error_does_not_tell_the_salt(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        response = await frontend.http.post("/v1/completions", json={"prompt": "x", "cache_salt": "secret/"})
    assert response.status_code == 400
    assert "secret" not in response.text


@pytest.mark.parametrize("template", [TEMPLATE, TEMPLATE + "<think>"])
async def test_chat_tells_of_tokens_with_a_parser_and_without(tokenizer: Tokenizer, template: str) -> None:
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "return_token_ids": True,
        "logprobs": True,
        "return_tokens_as_token_ids": True,
    }
    output = [*tokenizer.encode("Hm.</think>Hello 🙂"), 0]
    async with in_process(answering(tokenizer, "Hm.</think>Hello 🙂"), tokenizer, template) as frontend:
        answer = (await frontend.http.post("/v1/chat/completions", json=body)).json()
        response = await frontend.http.post("/v1/chat/completions", json=body | {"stream": True})
        (submit, _) = frontend.core.sent(Submit)
    chunks = events(response.text)
    (choice,) = answer["choices"]
    assert choice["token_ids"] == output
    assert answer["prompt_token_ids"] == chunks[0]["prompt_token_ids"] == array("i", submit.prompt).tolist()
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])
    streamed = [chunk["choices"][0] for chunk in chunks]
    assert [token for each in streamed for token in each.get("token_ids", [])] == output
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == [f"token_id:{token}" for token in output]


async def test_a_conversation_that_is_too_long_may_be_cut(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": " ".join(map(str, range(200)))}]
    body = {"messages": messages, "truncate_prompt_tokens": 5, "cache_salt": "secret", "request_id": "my-1"}
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        answer = (await frontend.http.post("/v1/chat/completions", json=body)).json()
        (submit,) = frontend.core.sent(Submit)
    assert array("i", submit.prompt).tolist() == tokenizer.encode("199<|end|><|start|>")
    assert (submit.cache_salt, answer["id"]) == ("secret", "chatcmpl-my-1")


async def test_an_echo_without_output_counts_no_token_of_it(tokenizer: Tokenizer) -> None:
    body = {"prompt": "Hello", "echo": True, "max_tokens": 0}
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "stream": True}
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        usage = (await complete(frontend, **body))["usage"]
        response = await frontend.http.post("/v1/completions", json=body | options)
    num_prompt = len(tokenizer.encode("Hello"))
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (num_prompt, 0, num_prompt)
    assert {event["usage"]["completion_tokens"] for event in events(response.text)} == {0}
