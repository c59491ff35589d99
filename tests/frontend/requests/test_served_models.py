"""A request's model may be an adapter: on every route, in the answer, in the ids of events, and looked for by name."""

import asyncio
from typing import Any

import pytest

from pyllm.errors import DeadlineError, EngineDeadError
from pyllm.frontend.http.failure import UnknownModelError
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.served_models import UNKNOWN_SECONDS, ServedModels
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Adapter, Call, Submit
from tests.client.adapter_core import AdapterCore, adapter
from tests.client.fake_core import connected
from tests.frontend.serving import answering, in_process

FIRST, SECOND = adapter("first"), adapter("second", "d2", "owner/repo")
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": CHAT,
    "/v1/embeddings": {"input": "hi"},
    "/invocations": CHAT,
}
COUNTED = {
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [65]},
    "/v1/messages/count_tokens": CHAT,
    "/v1/responses/input_tokens": {"input": "hi"},
}


def core_of(tokenizer: Tokenizer, *adapters: Adapter) -> AdapterCore:
    tokens = [*tokenizer.encode("Hello world", add_special_tokens=False), 0]
    return AdapterCore(lambda prompt, sample: tokens, adapters=adapters)


def num_loads(core: AdapterCore) -> int:
    return sum(call.method == "load_adapter" for call in core.sent(Call))


@pytest.mark.parametrize("path", ROUTES)
async def test_every_route_takes_an_adapter_as_its_model(path: str, tokenizer: Tokenizer) -> None:
    async with in_process(core_of(tokenizer, FIRST, SECOND), tokenizer) as frontend:
        for name, key in (("first", "first@d1"), ("second", "second@d2"), ("tiny", ""), (None, "")):
            answer = await frontend.http.post(path, json={**ROUTES[path], "model": name})
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == (name or "tiny")
            assert frontend.core.sent(Submit)[-1].adapter == key
        answer = await frontend.http.post(path, json={**ROUTES[path], "model": "third"})
        assert answer.status_code == 404
        assert "'third' does not exist; this server has 'tiny', 'first', 'second'." in answer.text


@pytest.mark.parametrize("path", ROUTES)
async def test_a_name_with_ollamas_tag_is_the_same_model(path: str, tokenizer: Tokenizer) -> None:
    async with in_process(core_of(tokenizer, FIRST), tokenizer) as frontend:
        for name, key in (("tiny:latest", ""), ("first:latest", "first@d1")):
            answer = await frontend.http.post(path, json={**ROUTES[path], "model": name})
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == name.removesuffix(":latest")
            assert frontend.core.sent(Submit)[-1].adapter == key
            assert (await frontend.http.get(f"/v1/models/{name}")).json()["id"] == name.removesuffix(":latest")
        assert (await frontend.http.post(path, json={**ROUTES[path], "model": "tiny:4b"})).status_code == 404


@pytest.mark.parametrize("path", COUNTED)
async def test_tokens_are_counted_for_an_adapter_too(path: str, tokenizer: Tokenizer) -> None:
    async with in_process(core_of(tokenizer, FIRST), tokenizer) as frontend:
        for name, status in (("first", 200), ("third", 404)):
            answer = await frontend.http.post(path, json={**COUNTED[path], "model": name})
            assert answer.status_code == status, answer.text


async def test_adapters_are_listed_with_their_parent(tokenizer: Tokenizer) -> None:
    async with in_process(core_of(tokenizer, FIRST, SECOND), tokenizer) as frontend:
        listed = (await frontend.http.get("/v1/models")).json()["data"]
        found = [(card["id"], card["parent"], card["root"]) for card in listed]
        assert found[0][:2] == ("tiny", None)
        assert found[1:] == [("first", "tiny", "/adapters/first"), ("second", "tiny", "owner/repo")]
        assert (await frontend.http.get("/v1/models/second")).json() == listed[2]
        assert (await frontend.http.get("/v1/models/third")).status_code == 404
        assert (await frontend.http.get("/lora-adapters")).json() == [
            {"id": 0, "path": "/adapters/first", "scale": 0.0},
            {"id": 1, "path": "owner/repo", "scale": 0.0},
        ]


async def test_a_stream_goes_on_with_its_own_adapter_alone(tokenizer: Tokenizer) -> None:
    async with in_process(core_of(tokenizer, FIRST, SECOND), tokenizer) as frontend:
        body = {"prompt": "hi", "stream": True, "temperature": 0, "max_tokens": 9}
        headers = {"accept": "text/event-stream"}

        async def ids(model: str) -> list[str]:
            answer = await frontend.http.post(
                "/v1/completions", json={**body, "model": model}, headers={"last-event-id": "", **headers}
            )
            return [line.removeprefix("id: ") for line in answer.text.splitlines() if line.startswith("id: ")]

        last = (await ids("first"))[0]
        for model, status in (("first", 200), ("second", 409), ("tiny", 409)):
            answer = await frontend.http.post(
                "/v1/completions", json={**body, "model": model}, headers={"last-event-id": last, **headers}
            )
            assert answer.status_code == status, answer.text
        core = frontend.core
        assert isinstance(core, AdapterCore)
        core.adapters["first"] = adapter("first", "d9")
        core.announce()
        answer = await frontend.http.post(
            "/v1/completions", json={**body, "model": "first"}, headers={"last-event-id": last, **headers}
        )
        assert answer.status_code == 409


async def test_fingerprints_differ_by_adapter(tokenizer: Tokenizer) -> None:
    async with in_process(core_of(tokenizer, FIRST, SECOND), tokenizer) as frontend:
        found = {
            (await frontend.http.post("/v1/completions", json={"prompt": "hi", "model": name})).json()[
                "system_fingerprint"
            ]
            for name in ("tiny", "first", "second")
        }
        assert len(found) == 3


async def test_an_unknown_name_is_looked_for_once_and_then_for_some_seconds_not_again() -> None:
    core, now = AdapterCore(), 100.0
    core.resolved["found"], core.files["/f"] = "/f", "d3"
    client = await connected(core)
    models = ServedModels(client, ["tiny", "alias"], lambda: now)
    core.pauses_loads = True
    contexts = [RequestContext(str(number)) for number in range(3)]
    choices = [asyncio.ensure_future(models.choose(context, "found")) for context in contexts]
    while not core.loads:
        await asyncio.sleep(0)
    core.finish_load()
    await asyncio.gather(*choices)
    assert {(context.model_name, context.adapter) for context in contexts} == {("found", "found@d3")}
    core.pauses_loads = False
    for _ in range(3):
        with pytest.raises(UnknownModelError, match="'lost' does not exist; this server has 'tiny', 'alias', 'found'"):
            await models.choose(contexts[0], "lost")
    assert num_loads(core) == 2
    now += UNKNOWN_SECONDS
    core.resolved["lost"] = "/f"
    await models.choose(contexts[0], "lost")
    assert contexts[0].adapter == "lost@d3"
    await models.choose(contexts[0], "alias")
    assert (contexts[0].model_name, contexts[0].adapter) == ("tiny", "")
    assert num_loads(core) == 3
    client.close()


async def test_an_adapter_whose_own_name_ends_with_ollamas_tag_is_found() -> None:
    core = AdapterCore()
    core.resolved["found:latest"], core.files["/f"] = "/f", "d3"
    client = await connected(core)
    models, context = ServedModels(client, ["tiny"]), RequestContext("1")
    for _ in range(2):  # Looked for, and then known.
        await models.choose(context, "found:latest")
        assert (context.model_name, context.adapter) == ("found:latest", "found:latest@d3")
    with pytest.raises(UnknownModelError, match="'lost:latest' does not exist"):
        await models.choose(context, "lost:latest")
    client.close()


async def test_a_request_waits_for_its_adapter_no_longer_than_it_may() -> None:
    core = AdapterCore()
    core.pauses_loads = True
    client = await connected(core)
    models = ServedModels(client, ["tiny"])
    with pytest.raises(DeadlineError, match="before its adapter was loaded"):
        await models.choose(RequestContext("1", timeout=0.0), "late")
    waiting = asyncio.ensure_future(models.choose(RequestContext("2"), "late"))
    while not core.loads:
        await asyncio.sleep(0)
    client.close()
    with pytest.raises(EngineDeadError):
        await waiting


async def test_names_without_an_adapter_do_not_pile_up() -> None:
    core = AdapterCore()
    client = await connected(core)
    models = ServedModels(client, ["tiny"], lambda: 1.0, max_unknown=3)
    for number in (1, 2, 3, 4, 1, 4):
        with pytest.raises(UnknownModelError):
            await models.choose(RequestContext("1"), f"x{number}")
    assert num_loads(core) == 5
    client.close()


async def test_a_server_without_adapters_asks_no_core(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "Hello"), tokenizer) as frontend:
        answer = await frontend.http.post("/v1/completions", json={"prompt": "hi", "model": "first"})
        assert answer.status_code == 404
        assert not frontend.core.sent(Call)


async def test_the_metrics_name_the_adapters_of_requests(tokenizer: Tokenizer) -> None:
    async with in_process(core_of(tokenizer, FIRST, SECOND), tokenizer, max_loras=4) as frontend:
        text = (await frontend.http.get("/metrics")).text
        (line,) = [line for line in text.splitlines() if line.startswith("vllm:lora_requests_info{")]
        for label in (
            'max_lora="4"',
            'running_lora_adapters="first,second"',
            'waiting_lora_adapters="first,second"',
            'model_name="tiny"',
        ):
            assert label in line
        assert float(line.rpartition(" ")[2]) > 1e9
