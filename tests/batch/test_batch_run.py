"""A batch against a server that is a function: each request has one answer, whenever the run before was killed."""

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.batch.answer_file import AnswerFile
from pyllm.batch.batch_run import Totals, run_batch
from pyllm.batch.request_file import RequestFile
from pyllm.batch.request_sender import BUSY_PATIENCE, MAX_LOSSES, UNREACHABLE_PATIENCE, RequestSender
from pyllm.errors import ConfigError
from pyllm.wire.server_client import UnreachableError, open_client

Handler = Callable[[httpx2.Request], httpx2.Response]
USAGE = {"prompt_tokens": 3, "completion_tokens": 2}


def write_requests(folder: Path, custom_ids: list[str], model: str = "m") -> Path:
    path = folder / "in.jsonl"
    rows = [
        {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {"model": model, "prompt": name}}
        for name in custom_ids
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def echo(request: httpx2.Request) -> httpx2.Response:
    """The prompt as the answer; a prompt with an x in it is refused."""
    if request.method == "GET":
        return httpx2.Response(200, json={"data": [{"id": "m"}]})
    prompt = json.loads(request.content)["prompt"]
    if "x" in prompt:
        return httpx2.Response(400, json={"error": {"message": "no x"}}, headers={"x-request-id": "r"})
    return httpx2.Response(200, content=json.dumps({"text": prompt, "usage": USAGE}, indent=2))


def no_disk(file: int) -> None:
    """What is written is looked at while the machine runs."""


def run(folder: Path, handler: Handler = echo, concurrency: int = 3) -> Totals:
    with (
        RequestFile(folder / "in.jsonl") as requests,
        AnswerFile(folder / "out.jsonl", {request.custom_id for request in requests.requests}, sync=no_disk) as answers,
    ):
        http = open_client("http://server", transport=httpx2.MockTransport(handler))
        return asyncio.run(run_batch(requests, answers, http, concurrency))


def answered(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "out.jsonl").read_bytes().split(b"\n")[:-1]]


names = st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=6, unique=True)


@given(names=names, data=st.data())
def test_each_request_has_one_answer_wherever_a_kill_cut_the_file(names: list[str], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_requests(Path(folder), names)
        out = Path(folder) / "out.jsonl"
        run(Path(folder))
        content = out.read_bytes()
        cut = data.draw(st.integers(0, len(content)))
        out.write_bytes(content[:cut])
        asked = Counter[str]()

        def count(request: httpx2.Request) -> httpx2.Response:
            if request.method == "POST":
                asked[json.loads(request.content)["prompt"]] += 1
            return echo(request)

        run(Path(folder), count)
        rows = answered(Path(folder))
        assert sorted(str(row["custom_id"]) for row in rows) == sorted(names)
        # What was whole is neither asked again nor changed.
        whole = content[: content.rfind(b"\n", 0, cut) + 1]
        assert out.read_bytes().startswith(whole)
        kept = [str(row["custom_id"]) for row in rows[: len(rows) - asked.total()]]
        assert len(kept) >= whole.count(b"\n")
        assert sorted([*kept, *asked]) == sorted(names)


def test_one_that_fails_costs_nothing_else(tmp_path: Path) -> None:
    write_requests(tmp_path, ["a", "x", "b"])
    totals = run(tmp_path)
    assert (totals.num_answered, totals.num_prompt_tokens, totals.num_output_tokens) == (3, 6, 4)
    rows = {row["custom_id"]: row for row in answered(tmp_path)}
    assert rows["x"]["response"] == {
        "status_code": 400,
        "request_id": "r",
        "body": {"error": {"message": "no x"}},
    }
    assert rows["a"]["error"] is rows["x"]["error"] is None


@pytest.mark.parametrize("concurrency", [1, 4, 50])
async def test_as_many_requests_run_as_may(tmp_path: Path, concurrency: int) -> None:
    write_requests(tmp_path, [f"r{number}" for number in range(20)])
    running: list[int] = [0]
    most = 0

    async def slow(request: httpx2.Request) -> httpx2.Response:
        nonlocal most
        if request.method == "POST":
            running[0] += 1
            most = max(most, running[0])
            for _ in range(50):
                await asyncio.sleep(0)
            running[0] -= 1
        return echo(request)

    with (
        RequestFile(tmp_path / "in.jsonl") as requests,
        AnswerFile(tmp_path / "out.jsonl", {f"r{number}" for number in range(20)}) as answers,
    ):
        http = open_client("http://s", transport=httpx2.MockTransport(slow))
        await run_batch(requests, answers, http, concurrency)
    assert most == min(concurrency, 20)
    assert len(answered(tmp_path)) == 20


def test_a_model_that_the_server_has_not_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    write_requests(tmp_path, ["a"], model="gpt")
    with pytest.raises(ConfigError, match="asks for the model 'gpt', and the server has 'm'"):
        run(tmp_path)
    assert answered(tmp_path) == []


CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})
OWN_TEMPLATE = ("/v1/chat/completions", {"chat_template": "{{ messages }}", "messages": []})
RESPONSE = ("/v1/responses", {"input": "a"})
COMPLETION = ("/v1/completions", {"prompt": "a"})


@pytest.mark.parametrize(
    ("rows", "is_refused"),
    [
        ([CHAT, CHAT], True),
        ([RESPONSE], True),
        ([COMPLETION, CHAT], True),
        ([CHAT, OWN_TEMPLATE], False),
        ([COMPLETION], False),
    ],
)
def test_chats_with_a_model_that_cannot_are_one_error_before_anything_is_sent(
    tmp_path: Path, rows: list[tuple[str, dict[str, object]]], is_refused: bool
) -> None:
    lines = [
        json.dumps({"custom_id": f"r{number}", "method": "POST", "url": url, "body": body})
        for number, (url, body) in enumerate(rows)
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    sent = []

    def base(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/model_info":
            return httpx2.Response(200, json={"chat_template_notice": "m has no chat template: give one"})
        sent.append(request.method)
        return httpx2.Response(200, json={"data": []})

    if is_refused:
        with pytest.raises(ConfigError, match=f"of {len(rows)} requests have messages: m has no chat template: give"):
            run(tmp_path, base)
        assert sent == ["GET"]
    else:
        run(tmp_path, base)
        assert sent.count("POST") == len(rows)


def test_a_server_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    write_requests(tmp_path, ["a"])

    def refuse(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    with pytest.raises(UnreachableError, match="cannot reach http://server: refused"):
        run(tmp_path, refuse)


def test_a_refused_key_ends_the_run_and_what_is_answered_stays(tmp_path: Path) -> None:
    write_requests(tmp_path, ["a", "b", "c"])

    def expire(request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST" and json.loads(request.content)["prompt"] == "b":
            return httpx2.Response(401, json={"error": "expired"})
        return echo(request)

    with pytest.raises(ConfigError, match="refuses the key with 401"):
        run(tmp_path, expire, concurrency=1)
    assert [row["custom_id"] for row in answered(tmp_path)] == ["a"]
    run(tmp_path)
    assert [row["custom_id"] for row in answered(tmp_path)] == ["a", "b", "c"]


class Sends:
    """A sender whose server gives these answers, the last one for ever, and whose waits are noted."""

    def __init__(self, *outcomes: httpx2.Response | Exception) -> None:
        self.waits: list[float] = []
        self._outcomes = list(outcomes)

    def _handle(self, request: httpx2.Request) -> httpx2.Response:
        outcome = self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return httpx2.Response(outcome.status_code, content=outcome.content, headers=dict(outcome.headers))

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def send(self) -> tuple[dict[str, Any], tuple[int, int]]:
        """The answer, and the tokens of prompt and output."""
        async with open_client("http://s", transport=httpx2.MockTransport(self._handle)) as http:
            sender = RequestSender(http, self._sleep)
            answer = await sender.send("a", "/v1/completions", b"{}")
        return json.loads(msgspec.json.encode(answer)), (sender.num_prompt_tokens, sender.num_output_tokens)


OK = httpx2.Response(200, json={"usage": {"input_tokens": 1, "output_tokens": 5}})


async def test_a_busy_server_is_asked_again_when_it_says() -> None:
    sends = Sends(httpx2.Response(503, headers={"retry-after": "7"}), httpx2.Response(429), OK)
    row, usage = await sends.send()
    assert row["response"]["status_code"] == 200
    assert usage == (1, 5)
    assert sends.waits[0] == 7
    assert len(sends.waits) == 2


async def test_a_server_that_stays_busy_is_the_answer() -> None:
    sends = Sends(httpx2.Response(503, json={"error": {"message": "full"}}))
    row, _ = await sends.send()
    assert row["response"]["status_code"] == 503
    assert sum(sends.waits) >= BUSY_PATIENCE > sum(sends.waits[:-1])


async def test_a_request_that_breaks_connections_fails_alone() -> None:
    sends = Sends(httpx2.ReadError("reset"))
    row, _ = await sends.send()
    assert row["error"] == {"code": "connection_lost", "message": f"the connection was lost {MAX_LOSSES} times: reset"}
    assert len(sends.waits) == MAX_LOSSES - 1
    assert (await Sends(httpx2.ReadError("reset"), OK).send())[0]["error"] is None


async def test_a_server_that_is_gone_is_waited_for_and_then_ends_the_run() -> None:
    sends = Sends(httpx2.ConnectError("refused"))
    with pytest.raises(UnreachableError, match="refused"):
        await sends.send()
    assert sum(sends.waits) >= UNREACHABLE_PATIENCE > sum(sends.waits[:-1])
    assert (await Sends(httpx2.ConnectError("refused"), OK).send())[0]["error"] is None


async def test_an_answer_that_is_no_json_is_an_error() -> None:
    row, _ = await Sends(httpx2.Response(404, text="<html>")).send()
    error = {"code": "invalid_response", "message": "status 404 with a body that is no JSON: '<html>'"}
    assert (row["response"], row["error"]) == (None, error)


@pytest.mark.parametrize("body", ['{"usage": "much"}', "[1]", '{"usage": null}', "{}"])
async def test_a_body_without_usage_counts_nothing(body: str) -> None:
    row, usage = await Sends(httpx2.Response(200, text=body)).send()
    assert row["response"]["body"] == json.loads(body)
    assert usage == (0, 0)
