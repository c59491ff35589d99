"""Log-probabilities of a whole vocabulary: the same JSON as that of a few, made on a thread, in order with all else."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from pyllm.client.logprobs import MOST_UNPACKED
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.client.fake_core import MODEL, ScriptedCore, told
from tests.frontend.serving import Frontend, in_process
from tests.waiting import until

COUNT = 500
LARGE = msgspec.structs.replace(MODEL, max_logprobs=COUNT)
TEXT = "one two three"
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hello!", "logprobs": COUNT, "max_tokens": 20},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "x"}],
        "logprobs": True,
        "top_logprobs": COUNT,
        "max_tokens": 20,
    },
    "/v1/responses": {
        "input": "x",
        "include": ["message.output_text.logprobs"],
        "top_logprobs": COUNT,
        "max_output_tokens": 20,
    },
}


class HeldThread(ThreadPoolExecutor):
    """Runs nothing until `gate` is set, and remembers its threads."""

    def __init__(self) -> None:
        super().__init__(1)
        self.gate = threading.Event()
        self.num_jobs = 0

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> "Future[Any]":
        self.num_jobs += 1

        def held() -> Any:
            self.gate.wait()
            return work(*args, **options)

        return super().submit(held)


def core_of(tokenizer: Tokenizer, text: str = TEXT) -> ScriptedCore:
    tokens = [*tokenizer.encode(text, add_special_tokens=False), 0]
    return ScriptedCore(lambda prompt, sample: tokens, LARGE)


async def answer_of(frontend: Frontend, route: str, **fields: Any) -> dict[str, Any]:
    response = await frontend.http.post(route, json=ROUTES[route] | fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def by_token(token: int) -> dict[int, float]:
    return {each: value for each, value, _ in told(token, COUNT)}


def by_text(tokenizer: Tokenizer, token: int) -> dict[str, float]:
    values: dict[str, float] = {}
    for each, value in by_token(token).items():
        text = tokenizer.token_text(each)
        values[text] = max(value, values.get(text, value))
    return values


def likeliest(tokenizer: Tokenizer, token: int) -> list[dict[str, Any]]:
    values = by_token(token)
    return [
        {"token": tokenizer.token_text(each), "logprob": value, "bytes": list(tokenizer.token_bytes(each))}
        for each, value in sorted(values.items(), key=lambda entry: (-entry[1], entry[0]))[:COUNT]
    ]


async def test_completions_and_their_prompts_have_all_of_them(tokenizer: Tokenizer) -> None:
    tokens = [*tokenizer.encode(TEXT, add_special_tokens=False), 0]
    async with in_process(core_of(tokenizer), tokenizer) as frontend:
        answer = await answer_of(frontend, "/v1/completions", prompt_logprobs=COUNT)
        echoed = await answer_of(frontend, "/v1/completions", echo=True)
    (choice,) = answer["choices"]
    assert choice["text"] == TEXT
    assert choice["logprobs"]["top_logprobs"] == [by_text(tokenizer, token) for token in tokens]
    assert choice["logprobs"]["tokens"] == [tokenizer.token_text(token) for token in tokens]
    assert choice["logprobs"]["token_logprobs"] == [by_token(token)[token] for token in tokens]
    _, second = tokenizer.encode("Hello!")
    expected = {
        str(token): {"logprob": value, "rank": rank, "decoded_token": tokenizer.token_text(token)}
        for token, value, rank in told(second, COUNT)
    }
    assert len(expected) > MOST_UNPACKED
    assert choice["prompt_logprobs"] == [None, expected]
    assert echoed["choices"][0]["logprobs"]["top_logprobs"] == [
        None,
        *(by_text(tokenizer, token) for token in (second, *tokens)),
    ]


async def test_chats_and_responses_have_all_of_them(tokenizer: Tokenizer) -> None:
    tokens = [*tokenizer.encode(TEXT, add_special_tokens=False), 0]
    async with in_process(core_of(tokenizer), tokenizer) as frontend:
        chat = await answer_of(frontend, "/v1/chat/completions")
        response = await answer_of(frontend, "/v1/responses")
    expected = [likeliest(tokenizer, token) for token in tokens]
    (choice,) = chat["choices"]
    assert [each["top_logprobs"] for each in choice["logprobs"]["content"]] == expected
    (part,) = response["output"][0]["content"]
    assert (choice["message"]["content"], part["text"]) == (TEXT, TEXT)
    assert [each["top_logprobs"] for each in part["logprobs"]] == expected


@pytest.mark.parametrize("has_ids", [False, True])
@pytest.mark.parametrize("n", [1, 2])
async def test_a_stream_goes_on_in_order_whenever_the_thread_is_done(
    tokenizer: Tokenizer, n: int, has_ids: bool
) -> None:
    route, core = "/v1/completions", core_of(tokenizer)
    async with in_process(core, tokenizer) as frontend:
        expected = await answer_of(frontend, route, n=n)
        thread = frontend.state.answer_thread = HeldThread()
        headers = {"last-event-id": ""} if has_ids else {}
        request = frontend.http.post(route, json=ROUTES[route] | {"stream": True, "n": n}, headers=headers)
        stream = asyncio.create_task(request)
        await until(lambda: thread.num_jobs and not core.running)
        thread.gate.set()
        text = (await stream).text
    found: list[dict[str, Any]] = [{"text": "", "logprobs": [], "ends": []} for _ in range(n)]
    *parts, done = [part.rpartition("data: ")[2] for part in text.split("\n\n")[:-1]]
    assert done == "[DONE]"
    for part in parts:
        for choice in msgspec.json.decode(part)["choices"]:
            kept = found[choice["index"]]
            assert not kept["ends"]
            kept["text"] += choice["text"]
            kept["logprobs"] += (choice["logprobs"] or {"top_logprobs": []})["top_logprobs"]
            kept["ends"] += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert found == [
        {"text": TEXT, "logprobs": choice["logprobs"]["top_logprobs"], "ends": ["stop"]}
        for choice in expected["choices"]
    ]


async def test_a_response_in_the_background_has_all_of_them_too(tokenizer: Tokenizer) -> None:
    async with in_process(core_of(tokenizer), tokenizer) as frontend:
        expected = await answer_of(frontend, "/v1/responses")
        thread = frontend.state.answer_thread = HeldThread()
        response = await answer_of(frontend, "/v1/responses", background=True, store=True)
        await until(lambda: thread.num_jobs > len(TEXT.split()))
        thread.gate.set()
        while response["status"] == "in_progress":
            await asyncio.sleep(0)  # Requests in process need no turn of the event loop, but the thread's results do.
            response = (await frontend.http.get(f"/v1/responses/{response['id']}")).json()
    assert response["status"] == "completed"
    assert [item["content"] for item in response["output"]] == [item["content"] for item in expected["output"]]


class FailingThread(ThreadPoolExecutor):
    """Fails whatever it is to run."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> "Future[Any]":
        job: Future[Any] = Future()
        job.set_exception(MemoryError())
        return job


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_cannot_be_written_is_an_error(tokenizer: Tokenizer, streamed: bool) -> None:
    async with in_process(core_of(tokenizer), tokenizer) as frontend:
        frontend.state.answer_thread = FailingThread(1)
        body = ROUTES["/v1/completions"] | {"stream": streamed}
        response = await frontend.http.post("/v1/completions", json=body)
    assert response.status_code == 500
    assert "could not be written" in response.json()["error"]["message"]
