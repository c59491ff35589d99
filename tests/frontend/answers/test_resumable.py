"""A stream that broke off anywhere goes on exactly there, on whichever process the request is repeated."""

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import cycle
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllm.checkpoint.generation_config import SamplingDefaults
from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Submit
from tests.client.fake_core import ScriptedCore
from tests.client.ragged_core import RaggedCore
from tests.frontend.openai.test_tools import CALLS, CLOCK, HERMES, ROOMY, WEATHER
from tests.frontend.serving import Frontend, answering, in_process
from tests.tiers import cases

THOUGHT = "<think>\nIs it warm?\n</think>\n"
TEXT = "Hello 🙂 world, how is the s🙂a? STOP it, world."
ACCEPT = {"accept": "text/event-stream"}
# What an id has of a model and a request.
IDENTITY = "0123456789ab-0123456789ab"

pieces = st.lists(st.integers(1, 7), min_size=1, max_size=6)


class Seen:
    """What a client has after all events of one answer: their fold, each in its own way at most once."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = defaultdict(str)
        self.roles: dict[int, int] = defaultdict(int)
        self.tokens: dict[int, list[str]] = defaultdict(list)
        self.reasons: dict[int, list[str]] = defaultdict(list)
        self.usages: list[dict[str, Any]] = []
        self.identities: set[tuple[str, int]] = set()
        self.num_ends = 0

    def read(self, blocks: list[str]) -> None:
        for block in blocks:
            data = block.rpartition("data: ")[2]
            if data == "[DONE]":
                self.num_ends += 1
                continue
            chunk = msgspec.json.decode(data)
            self.identities.add((chunk["id"], chunk["created"]))
            if chunk["usage"] is not None:
                self.usages.append(chunk["usage"])
            for choice in chunk["choices"]:
                self._read(choice)

    def _read(self, choice: dict[str, Any]) -> None:
        index = choice["index"]
        delta = choice.get("delta") or choice
        assert not self.reasons[index], "something follows the end of a choice"
        self.roles[index] += "role" in delta
        self.texts[index] += delta.get("content") or delta.get("text") or ""
        logprobs = choice["logprobs"] or {}
        self.tokens[index] += logprobs.get("tokens") or [each["token"] for each in logprobs.get("content", ())]
        if choice["finish_reason"] is not None:
            self.reasons[index].append(choice["finish_reason"])


def blocks_of(text: str) -> list[str]:
    *blocks, end = text.split("\n\n")
    assert end == ""
    return blocks


def id_of(block: str) -> str:
    first = block.split("\n", maxsplit=1)[0]
    assert first.startswith("id: ")
    return first.removeprefix("id: ")


@asynccontextmanager
async def frontend_of(tokenizer: Tokenizer) -> AsyncGenerator[Frontend, None]:
    """Each sample says something else, and more than the one before it."""
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    core = RaggedCore(lambda prompt, sample: [*prompt, *tokens[: 6 + 9 * sample], 0])
    async with in_process(core, tokenizer) as frontend:
        yield frontend


async def ask(
    frontend: Frontend, path: str, body: dict[str, Any], sizes: list[int], headers: dict[str, str]
) -> list[str]:
    """One whole stream without the time of its end, as a second may pass; tokens come in deltas of these sizes."""
    assert isinstance(frontend.core, RaggedCore)
    frontend.core.sizes = cycle(sizes)
    response = await frontend.http.post(path, json=body, headers=headers)
    assert response.status_code == 200, response.text
    return blocks_of(re.sub(r'"completed_at":\d+', '"completed_at":0', response.text))


@settings(max_examples=cases(25))
@given(data=st.data(), n=st.integers(1, 3), chat=st.booleans(), logprobs=st.booleans(), stop=st.booleans())
def test_what_follows_any_event_is_exactly_the_rest(
    tokenizer: Tokenizer, data: st.DataObject, n: int, chat: bool, logprobs: bool, stop: bool
) -> None:
    body: dict[str, Any] = {"stream": True, "n": n, "stream_options": {"include_usage": True}}
    body |= {"max_tokens": data.draw(st.integers(1, 60))}
    body |= {"messages": [{"role": "user", "content": "x"}]} if chat else {"prompt": ["x", "yy"]}
    if logprobs:
        body |= {"logprobs": True} if chat else {"logprobs": 0}
    if stop:
        body |= {"stop": ["STOP", "🙂a", *(f"🙂{number}" for number in range(38))]}
    path = "/v1/chat/completions" if chat else "/v1/completions"

    async def check() -> None:
        async with frontend_of(tokenizer) as frontend:
            await compare(frontend)

    async def compare(frontend: Frontend) -> None:
        whole = await ask(frontend, path, body, data.draw(pieces), ACCEPT)
        expected = Seen()
        expected.read(whole)
        cut = data.draw(st.integers(1, len(whole)))
        rest = await ask(frontend, path, body, data.draw(pieces), {"last-event-id": id_of(whole[cut - 1])})
        seen = Seen()
        seen.read(whole[:cut])
        seen.read(rest)
        assert vars(seen) == vars(expected)
        assert seen.num_ends == len(seen.usages) == len(seen.identities) == 1
        assert all(len(reasons) == 1 for reasons in seen.reasons.values())
        again = await ask(frontend, path, body, data.draw(pieces), {"last-event-id": id_of([*whole[:cut], *rest][-1])})
        assert again == []

    asyncio.run(check())


@settings(max_examples=cases(25))
@given(first=pieces, second=pieces, cut=st.integers(1, 1000), n=st.integers(1, 2))
def test_tool_calls_and_reasoning_go_on_in_the_middle(
    tokenizer: Tokenizer, first: list[int], second: list[int], cut: int, n: int
) -> None:
    tokens = tokenizer.encode(THOUGHT + CALLS, add_special_tokens=False)
    core = RaggedCore(lambda prompt, sample: [*tokens[4 * sample :], 0], model=ROOMY)
    user = {"role": "user", "content": "x"}
    body = {"messages": [user], "tools": [WEATHER, CLOCK], "stream": True, "n": n}

    def added_up(blocks: list[str]) -> list[list[dict[str, Any]]]:
        choices: list[list[dict[str, Any]]] = [[] for _ in range(n)]
        for block in blocks[:-1]:
            (choice,) = msgspec.json.decode(block.rpartition("data: ")[2])["choices"]
            choices[choice["index"]].append(choice)
        return [[fold(choice), choice[-1]["finish_reason"]] for choice in choices]

    async def check() -> None:
        server = ServerConfig(reasoning_parser="think")
        async with in_process(core, tokenizer, HERMES, server=server) as frontend:
            whole = await ask(frontend, "/v1/chat/completions", body, first, ACCEPT)
            place = 1 + cut % (len(whole) - 1)
            headers = {"last-event-id": id_of(whole[place - 1])}
            rest = await ask(frontend, "/v1/chat/completions", body, second, headers)
            assert added_up([*whole[:place], *rest]) == added_up(whole)

    asyncio.run(check())


def fold(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of one choice's deltas; each call begins once, with its id."""
    message: dict[str, Any] = {"roles": 0, "content": "", "reasoning": "", "calls": []}
    for choice in choices:
        delta = choice["delta"]
        message["roles"] += "role" in delta
        message["content"] += delta.get("content") or ""
        message["reasoning"] += delta.get("reasoning") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                message["calls"].append([call["id"], call["function"]["name"], ""])
            message["calls"][call["index"]][2] += call["function"].get("arguments") or ""
    assert (message["roles"], len(message["calls"])) == (1, 2)
    return message


async def test_a_piece_of_several_events_goes_on_between_them(tokenizer: Tokenizer) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 5}
    async with frontend_of(tokenizer) as frontend:
        whole = await ask(frontend, "/v1/chat/completions", body, [5], ACCEPT)
        rest = await ask(frontend, "/v1/chat/completions", body, [1], {"last-event-id": id_of(whole[0])})
    assert [id_of(block).rpartition(".")[2] for block in whole] == ["0+5f-1", "5f", "5f,e1"]
    assert rest == whole[1:]


async def test_the_seed_of_the_first_run_is_that_of_the_second(tokenizer: Tokenizer) -> None:
    body = {"prompt": ["x", "x"], "stream": True}
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        first = await frontend.http.post("/v1/completions", json=body, headers=ACCEPT)
        event = id_of(blocks_of(first.text)[0])
        await frontend.http.post("/v1/completions", json=body, headers={"last-event-id": event})
        await frontend.http.post("/v1/completions", json={**body, "seed": 5}, headers=ACCEPT)
        await frontend.http.post("/v1/completions", json=body)
    seeds = [submit.seed for submit in frontend.core.sent(Submit)]
    assert int(event.split(".")[2], 16) == seeds[0] == seeds[1] - 1  # equal prompts have different answers
    assert seeds[2:4] == seeds[:2]
    assert seeds[4:6] == [5, 5]
    assert len(set(seeds)) == 5


@pytest.mark.parametrize("headers", [ACCEPT, {"last-event-id": ""}, {"idempotency-key": "a"}])
async def test_ids_go_to_those_who_ask(tokenizer: Tokenizer, headers: dict[str, str]) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        body = {"prompt": "x", "stream": True}
        with_ids = await frontend.http.post("/v1/completions", json=body, headers=headers)
        without = await frontend.http.post("/v1/completions", json=body)
    assert all(id_of(block) for block in blocks_of(with_ids.text))
    assert all(block.startswith("data: ") for block in blocks_of(without.text))


@pytest.mark.parametrize(
    ("event", "body", "text"),
    [
        ("nonsense", {}, "is not the id"),
        ("x" * 5000 + ".1.1.1", {}, "is not the id"),
        ("a.1.1.2", {}, "is not the id"),  # as they were when they named no model
        ("a.1.1..2", {}, "is not the id"),
        (f"a.1.1.{IDENTITY}.", {}, "is not the id"),
        (f"a.1.1.{IDENTITY}.1f+1-1", {}, "is not the id"),
        (f"a.1.1.{IDENTITY}.1,e1", {}, "is not the id"),
        (f"a.1.1.{IDENTITY}.2,3", {}, "2 choices, this one has 1"),
        (f"a.1.1.{IDENTITY}.2", {"n": 2}, "1 choices, this one has 2"),
        (f"a.1.1.{IDENTITY}.2", {"seed": 7}, "seed 1, this request 7"),
        (f"a.1.1.{IDENTITY}.2", {"stream": False}, "resumes streams"),
    ],
)
async def test_an_id_that_does_not_fit_is_refused_by_the_headers_name(
    tokenizer: Tokenizer, event: str, body: dict[str, Any], text: str
) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        body = {"prompt": "x", "stream": True, **body}
        response = await frontend.http.post("/v1/completions", json=body, headers={"last-event-id": event})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "Last-Event-ID")
    assert text in error["message"]
    assert frontend.core.running == {}


USER = {"role": "user", "content": "x"}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER], "n": 2},
    "/v1/completions": {"prompt": ["x", "yy"]},
    "/v1/messages": {"model": "tiny", "messages": [USER], "max_tokens": 60},
    "/v1/responses": {"input": "x"},
}


@pytest.mark.parametrize("key", [{}, {"idempotency-key": "a"}])
@pytest.mark.parametrize("path", ROUTES)
async def test_a_stream_goes_on_at_a_server_that_has_never_heard_of_it(
    tokenizer: Tokenizer, path: str, key: dict[str, str]
) -> None:
    body = {**ROUTES[path], "stream": True}
    async with frontend_of(tokenizer) as first, frontend_of(tokenizer) as second:
        whole = await ask(first, path, body, [3], ACCEPT | key)
        for cut in (1, len(whole) // 2, len(whole)):
            headers = key | {"last-event-id": id_of(whole[cut - 1])}
            assert await ask(second, path, body, [3], headers) == whole[cut:]
    seeds = [[submit.seed for submit in frontend.core.sent(Submit)] for frontend in (first, second)]
    assert seeds[1] == seeds[0] * 3


@pytest.mark.parametrize("path", ROUTES)
async def test_a_server_with_another_model_refuses_the_rest_by_name(tokenizer: Tokenizer, path: str) -> None:
    body = {**ROUTES[path], "stream": True}
    other = RaggedCore(lambda prompt, sample: [5, 0])
    other.fingerprint = "another"
    async with frontend_of(tokenizer) as first, in_process(other, tokenizer) as second:
        whole = await ask(first, path, body, [3], ACCEPT)
        answer = await second.http.post(path, json=body, headers={"last-event-id": id_of(whole[0])})
        hashes = [(await frontend.http.get("/server_info")).json()["model_hash"] for frontend in (first, second)]
    assert (answer.status_code, answer.headers["x-should-retry"], other.sent(Submit)) == (409, "false", [])
    assert f"of the model {hashes[0]}, and this server has {hashes[1]}" in answer.json()["error"]["message"]


@pytest.mark.parametrize("change", [{"prompt": "y"}, {"temperature": 0.5}, {"max_tokens": 3}, {"stop": ["a"]}])
async def test_another_request_does_not_go_on(tokenizer: Tokenizer, change: dict[str, Any]) -> None:
    body = {"prompt": "x", "stream": True}
    async with frontend_of(tokenizer) as frontend:
        (first, *_) = await ask(frontend, "/v1/completions", body, [3], ACCEPT)
        headers = {"last-event-id": id_of(first)}
        answer = await frontend.http.post("/v1/completions", json=body | change, headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (409, "resume_conflict", "Last-Event-ID")
    assert "another prompt or other parameters" in error["message"]


async def test_servers_whose_defaults_differ_do_not_splice(tokenizer: Tokenizer) -> None:
    body = {"prompt": "x", "stream": True}
    core = RaggedCore(lambda prompt, sample: [5, 6, 0])
    async with (
        frontend_of(tokenizer) as first,
        in_process(core, tokenizer, sampling=SamplingDefaults(temperature=0.5)) as second,
    ):
        (event, *_) = await ask(first, "/v1/completions", body, [3], ACCEPT)
        answer = await second.http.post("/v1/completions", json=body, headers={"last-event-id": id_of(event)})
    assert answer.json()["error"]["code"] == "resume_conflict"


async def test_many_choices_have_no_ids(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        body = {"prompt": ["x"] * 129, "stream": True}
        response = await frontend.http.post("/v1/completions", json=body, headers=ACCEPT)
    assert all(block.startswith("data: ") for block in blocks_of(response.text))


async def test_what_ends_earlier_than_before_has_its_end(tokenizer: Tokenizer) -> None:
    async with in_process(ScriptedCore(lambda prompt, sample: [5, 6, 0]), tokenizer) as frontend:
        body = {"prompt": "x", "stream": True}
        whole = await frontend.http.post("/v1/completions", json=body, headers=ACCEPT)
        identity = id_of(blocks_of(whole.text)[0]).split(".")[3]
        headers = {"last-event-id": f"a.1.1.{identity}.9"}
        response = await frontend.http.post("/v1/completions", json=body, headers=headers)
    chunk = msgspec.json.decode(blocks_of(response.text)[0].rpartition("data: ")[2])
    assert (chunk["id"], chunk["created"]) == ("cmpl-a", 1)
    assert (chunk["choices"][0]["text"], chunk["choices"][0]["finish_reason"]) == ("", "stop")
