"""Limits and the queue as a client meets them; every ticket comes back, however its request ends."""

import asyncio
from typing import Any

import pytest

from pyllm.config.api_keys import Allowance
from pyllm.config.process_config import SharedConfig
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import GivenUpError, RequestError
from pyllm.frontend.openai.protocol import CompletionRequest
from pyllm.frontend.requests.admission_control import admit
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.scheduling import scheduling_from
from pyllm.frontend.shared.local_state import LocalState
from pyllm.frontend.shared.messages import Admission, Granted, Refused
from pyllm.frontend.shared.shared_state import SharedState
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import FinishCode, Submit
from tests.client.fake_core import Row, ScriptedCore, connected
from tests.frontend.serving import Frontend, answering, behind_uvicorn, events, in_process, state_of
from tests.waiting import until

UNBOUNDED = SharedConfig()
BODY = {"prompt": "Hello world", "max_tokens": 4}
CHAT = {"messages": [{"role": "user", "content": "x"}]}


async def complete(frontend: Frontend, **fields: Any) -> Any:
    return await frontend.http.post("/v1/completions", json={**BODY, **fields})


def shared_of(config: SharedConfig = UNBOUNDED) -> tuple[SharedState, LocalState]:
    state = SharedState(config, lambda: 0.0)
    return state, LocalState(state)


@pytest.mark.parametrize("streamed", [False, True])
async def test_requests_per_minute(tokenizer: Tokenizer, streamed: bool) -> None:
    _, shared = shared_of()
    server = ServerConfig(max_requests_per_minute=2)
    async with in_process(answering(tokenizer, "ok"), tokenizer, server=server, shared=shared) as frontend:
        first, second, third = [await complete(frontend, stream=streamed, user="a") for _ in range(3)]
        assert (await complete(frontend, user="b")).status_code == 200
        metrics = (await frontend.http.get("/metrics")).text
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert second.headers["x-ratelimit-remaining-requests"] == "0"
    assert second.headers["x-ratelimit-reset-requests"] == "60.000s"
    assert "x-ratelimit-limit-tokens" not in first.headers
    assert (third.status_code, third.headers["retry-after"]) == (429, "30")
    error = third.json()["error"]
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert 'rate_limit_rejections_total{engine="0",model_name="tiny",reason="requests"} 1.0' in metrics


async def test_tokens_per_minute(tokenizer: Tokenizer) -> None:
    _, shared = shared_of()
    server = ServerConfig(max_tokens_per_minute=30)
    async with in_process(answering(tokenizer, "ok"), tokenizer, server=server, shared=shared) as frontend:
        num_prompt = len(tokenizer.encode("Hello world"))
        first = await complete(frontend)
        assert first.headers["x-ratelimit-remaining-tokens"] == str(30 - num_prompt)
        num_output = first.json()["usage"]["completion_tokens"]
        second = await complete(frontend)
        assert second.headers["x-ratelimit-remaining-tokens"] == str(30 - 2 * num_prompt - num_output)
        too_large = await complete(frontend, prompt=[5] * 31)
        refused = await complete(frontend, prompt=[5] * 30)
        submitted = len(frontend.core.sent(Submit))
    assert (too_large.status_code, too_large.json()["error"]["type"]) == (429, "tokens")
    assert "can never run" in too_large.json()["error"]["message"]
    assert "retry-after" not in too_large.headers
    assert too_large.headers["x-should-retry"] == "false"
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 1
    assert submitted == 2


async def test_concurrent_requests_and_their_return(tokenizer: Tokenizer) -> None:
    counted, shared = shared_of()
    core = answering(tokenizer, "ok")
    server = ServerConfig(max_concurrent_requests=1)
    async with behind_uvicorn(core, tokenizer, server=server, shared=shared) as frontend:
        core.paused = True
        asking = asyncio.create_task(complete(frontend))
        await until(lambda: core.sent(Submit))
        refused = await frontend.http.post("/v1/chat/completions", json=CHAT)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        asking.cancel()  # The client leaves.
        await until(lambda: counted.num_tickets == 0)
        core.resume()
        for body in ({}, {"stream": True}, {"n": 3}, {"prompt": ["a", "b"]}):
            assert (await complete(frontend, **body)).status_code == 200
            await until(lambda: counted.num_tickets == 0)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"prompt": "x" * 3000}, 400),  # refused while tokenising
        ({"prompt": [1] * 300}, 400),  # by the client
        ({"prompt": [9999]}, 400),
        ({"prompt": ["x"] * 1000, "n": 100}, 400),
        ({"bad_words": [""]}, 400),
        ({"timeout": 1e-9}, 408),
        ({"structured_outputs": {"json": "{"}}, 400),
    ],
)
async def test_a_request_that_never_runs_keeps_no_ticket(
    tokenizer: Tokenizer, fields: dict[str, Any], status: int
) -> None:
    counted, shared = shared_of()
    async with in_process(answering(tokenizer, "ok"), tokenizer, shared=shared) as frontend:
        assert (await complete(frontend, **fields)).status_code == status
        assert counted.num_tickets == 0


async def test_an_unforeseen_error_keeps_no_ticket_either(tokenizer: Tokenizer) -> None:
    class Broken:
        async def encode(self, prompts: Any, add_special_tokens: bool) -> Any:
            raise ZeroDivisionError

    counted, shared = shared_of()
    async with in_process(answering(tokenizer, "ok"), tokenizer, shared=shared) as frontend:
        frontend.state.prompts = Broken()  # type: ignore[assignment]
        assert (await complete(frontend)).status_code == 500
        assert counted.num_tickets == 0


async def test_an_engine_that_is_given_up_gives_tickets_back(tokenizer: Tokenizer) -> None:
    counted, shared = shared_of()
    core = answering(tokenizer, "ok")
    core.paused = True
    async with behind_uvicorn(core, tokenizer, shared=shared) as frontend:
        asking = [asyncio.create_task(complete(frontend, stream=stream)) for stream in (True, False)]
        await until(lambda: len(core.sent(Submit)) == 2)
        assert counted.num_tickets == 2
        frontend.client.give_up(GivenUpError("it died too often"))
        answers = await asyncio.gather(*asking)
        assert [(answer.status_code, answer.headers["retry-after"]) for answer in answers] == [(503, "5")] * 2
        await until(lambda: counted.num_tickets == 0)


async def test_a_full_queue_answers_before_it_tokenises(tokenizer: Tokenizer) -> None:
    class Unread:
        async def encode(self, prompts: Any, add_special_tokens: bool) -> Any:
            raise AssertionError("it was tokenised")

    _, shared = shared_of(SharedConfig(max_num_seqs=1, max_num_queued_reqs=1))
    core = answering(tokenizer, "ok")
    async with behind_uvicorn(core, tokenizer, shared=shared) as frontend:
        core.paused = True
        asking = [asyncio.create_task(complete(frontend)) for _ in range(2)]
        await until(lambda: len(core.sent(Submit)) == 2)
        prompts, frontend.state.prompts = frontend.state.prompts, Unread()  # type: ignore[assignment]
        refused = await complete(frontend)
        frontend.state.prompts = prompts
        core.resume()
        await asyncio.gather(*asking)
        assert (await complete(frontend)).status_code == 200
        metrics = (await frontend.http.get("/metrics")).text
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_full")
    assert refused.headers["retry-after"] == "1"
    assert 'vllm:admission_rejections_total{engine="0",model_name="tiny",reason="max_num_queued_reqs"} 1.0' in metrics


async def test_queued_tokens(tokenizer: Tokenizer) -> None:
    _, shared = shared_of(SharedConfig(max_num_seqs=1, max_num_queued_tokens=20))
    core = answering(tokenizer, "ok")
    async with behind_uvicorn(core, tokenizer, shared=shared) as frontend:
        core.paused = True
        asking = asyncio.create_task(complete(frontend, prompt=[5] * 15))
        await until(lambda: core.sent(Submit))
        refused = await complete(frontend, prompt=[5] * 6)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_full")
        core.resume()
        await asking
        assert (await complete(frontend, prompt=[5] * 6)).status_code == 200


async def test_a_request_that_the_shared_state_has_lost_is_worth_another_try(tokenizer: Tokenizer) -> None:
    class Forgetful(LocalState):
        """Is taken for dead between a request's admission and its prompt."""

        async def charge(self, ticket: int, num_prompt_tokens: int) -> Granted | Refused:
            state.drop(0)
            return await super().charge(ticket, num_prompt_tokens)

    state = SharedState(SharedConfig(max_num_queued_tokens=99), lambda: 0.0)
    async with in_process(answering(tokenizer, "ok"), tokenizer, shared=Forgetful(state)) as frontend:
        answer = await complete(frontend)
        metrics = (await frontend.http.get("/metrics")).text
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")
    assert answer.headers["retry-after"] == "5"
    assert 'rate_limit_rejections_total{engine="0",model_name="tiny",reason="requests"} 0.0' in metrics


class ExpiringCore(ScriptedCore):
    """Ends everything by its deadline before its first token."""

    def _step(self) -> None:
        for request, sample in list(self.running):
            del self.running[request, sample]
            self.say_rows(Row(request, [], 0, sample, FinishCode.DEADLINE))


@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"prompt": ["a", "b"]}])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("header", [{"x-request-timeout": "30"}, {}])
async def test_no_token_in_time_is_a_408(
    tokenizer: Tokenizer, fields: dict[str, Any], streamed: bool, header: dict[str, str]
) -> None:
    counted, shared = shared_of()
    server = ServerConfig(request_timeout=40.0)
    core = ExpiringCore(lambda prompt, sample: [])
    async with in_process(core, tokenizer, server=server, shared=shared) as frontend:
        response = await frontend.http.post(
            "/v1/completions", json={**BODY, **fields, "stream": streamed}, headers=header
        )
        assert response.status_code == 408
        assert response.json()["error"]["code"] == "request_timeout"
        assert ("30" if header else "40") in response.json()["error"]["message"]
        assert 0 < core.sent(Submit)[0].timeout <= (30 if header else 40)
        assert counted.num_tickets == 0
        num_deadlines = frontend.state.metrics.finished["deadline"]
    assert num_deadlines == fields.get("n", 1) * len(fields.get("prompt", [1]))


async def test_what_took_too_long_before_it_began_does_not_begin(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        response = await frontend.http.post(
            "/v1/completions", json={**BODY, "stream": True}, headers={"x-request-timeout": "0.000000001"}
        )
        assert (response.status_code, frontend.core.received[1:]) == (408, [])


async def test_other_timeouts_are_as_they_were(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        streamed = await complete(frontend, stream=True)
        assert events(streamed.text)
        assert frontend.core.sent(Submit)[0].timeout is None


async def test_who_is_cancelled_while_asking_gives_the_ticket_back(tokenizer: Tokenizer) -> None:
    class Elsewhere:
        """Grants, but its answer never comes."""

        def __init__(self) -> None:
            self.open: set[int] = set()

        async def admit(self, admission: Admission) -> Granted | Refused:
            self.open.add(admission.ticket)
            await asyncio.Event().wait()
            raise AssertionError

        async def charge(self, ticket: int, num_prompt_tokens: int) -> Granted | Refused:
            raise AssertionError

        def started(self, ticket: int) -> None:
            raise AssertionError

        def ended(self, ticket: int, num_output_tokens: int) -> None:
            self.open.discard(ticket)

    shared = Elsewhere()
    client = await connected(answering(tokenizer, "ok"))
    state = state_of(client, tokenizer, shared=shared)
    asking = asyncio.create_task(admit(state, RequestContext("1", allowance=Allowance()), 1))
    await until(lambda: shared.open)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    client.close()
    assert shared.open == set()


def test_a_session_is_what_the_header_names_else_the_body() -> None:
    for header, names, session in (
        ("", (None, "me"), "me"),
        ("", ("conversation", "me"), "conversation"),
        ("of a router", ("conversation", "me"), "of a router"),
        ("", (None, None), ""),
    ):
        context = RequestContext("1", session=header)
        context.name_session(*names)
        assert scheduling_from(context, None).session == session
    long = [scheduling_from(RequestContext("1", session=f"{'x' * 300}{end}"), None).session for end in "ab"]
    assert long[0] != long[1]


def test_a_user_names_the_tenant_once() -> None:
    context = RequestContext("1")
    context.name_tenant(None)
    context.name_tenant("a")
    context.name_tenant("b")
    assert context.tenant == "a"
    with pytest.raises(RequestError):
        RequestContext("1").name_tenant("\x00")
    assert CompletionRequest(prompt="x", user="a").user == "a"
