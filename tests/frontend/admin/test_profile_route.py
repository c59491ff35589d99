"""`POST /admin/profile`: what it asks the core for, and the table and the trace that it answers."""

import gzip
from typing import Any

import msgspec
import pytest

from pyllm.frontend.admin.profile_route import FILE_NAME
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Call
from pyllm.wire.profiles import OpTime, ProfileOutcome, RankProfile, RankTimes
from tests.frontend.admin.test_routes import ADMIN, BOTH, USER, bearer
from tests.frontend.serving import answering, in_process

OP = {"op": "norm", "kind": "rust", "calls": 4, "total_us": 9.0, "share": 0.9}


def rank(
    number: int, num_steps: int = 20, *, events: list[dict[str, Any]] | None = None, untraced: int = 0
) -> RankProfile:
    times = RankTimes(number, num_steps, 5, 10.0, 1.0, untraced, [msgspec.convert(OP, OpTime)])
    return RankProfile(times, b"" if events is None else gzip.compress(msgspec.json.encode(events)))


def replying(tokenizer: Tokenizer, outcome: ProfileOutcome) -> Any:
    core = answering(tokenizer, "ok")
    core.replies = {"profile": outcome}
    return core


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({}, (20, 30.0, False, None)),
        ({"num_steps": 5}, (5, 30.0, False, None)),
        ({"seconds": 2.5}, (100, 2.5, False, None)),
        ({"num_steps": 3, "seconds": 1, "format": "trace"}, (3, 1.0, True, None)),
        ({"ranks": [1, 3]}, (20, 30.0, False, [1, 3])),
    ],
)
async def test_it_asks_for_steps_or_seconds(tokenizer: Tokenizer, body: dict[str, Any], asked: tuple[Any, ...]) -> None:
    core = replying(tokenizer, ProfileOutcome("steps", 1.0))
    async with in_process(core, tokenizer, keys=BOTH) as frontend:
        refused = await frontend.http.post("/admin/profile", json=body, headers=bearer(USER))
        assert (refused.status_code, core.sent(Call)) == (403, [])
        answer = await frontend.http.post("/admin/profile", json=body, headers=bearer(ADMIN))
    assert answer.status_code == 200
    assert [(call.method, call.args) for call in core.sent(Call)] == [("profile", asked)]


async def test_the_table_has_every_rank(tokenizer: Tokenizer) -> None:
    core = replying(tokenizer, ProfileOutcome("steps", 1.5, ranks=[rank(0), rank(1)]))
    async with in_process(core, tokenizer, keys=BOTH) as frontend:
        answer = (await frontend.http.post("/admin/profile", json={}, headers=bearer(ADMIN))).json()
    first = {"rank": 0, "num_steps": 20, "num_tokens": 5, "wall_us": 10.0, "other_us": 1.0, "untraced": 0, "ops": [OP]}
    assert answer == {"ended_by": "steps", "seconds": 1.5, "note": "", "ranks": [first, first | {"rank": 1}]}


@pytest.mark.parametrize(
    ("num_steps", "note"), [(0, "30 s had no step: there was no traffic"), (7, "30 s had 7 of 20 steps")]
)
async def test_what_the_seconds_had_is_said(tokenizer: Tokenizer, num_steps: int, note: str) -> None:
    core = replying(tokenizer, ProfileOutcome("seconds", 30.2, ranks=[rank(0, num_steps)]))
    async with in_process(core, tokenizer, keys=BOTH) as frontend:
        answer = (await frontend.http.post("/admin/profile", json={}, headers=bearer(ADMIN))).json()
    assert (answer["ended_by"], answer["note"]) == ("seconds", note)


async def test_the_trace_is_one_file_of_all_ranks(tokenizer: Tokenizer) -> None:
    events = [[{"ph": "X", "pid": number, "name": f"op {number}"}] * 2 for number in range(3)]
    ranks = [rank(0, events=events[0]), rank(1, untraced=9), rank(2, events=events[2])]
    core = replying(tokenizer, ProfileOutcome("steps", 1.5, ranks=ranks))
    async with in_process(core, tokenizer, keys=BOTH) as frontend:
        answer = await frontend.http.post("/admin/profile", json={"format": "trace"}, headers=bearer(ADMIN))
    assert answer.headers["content-type"] == "application/gzip"
    assert f'filename="{FILE_NAME}"' in answer.headers["content-disposition"]
    trace = msgspec.json.decode(gzip.decompress(answer.content))
    assert trace["traceEvents"] == [*events[0], *events[2]]
    report = trace["otherData"]
    assert [each["rank"] for each in report["ranks"]] == [0, 1, 2]
    assert report["note"] == (
        "the trace leaves out 9 events, as it is full; the table has them; "
        "the trace leaves out ranks 1, as it is full"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "status", "code", "text"),
    [
        (ProfileOutcome("running", reason="a profile has been running"), 409, "profile_running", "has been running"),
        (ProfileOutcome("interrupted", 2.0, "worker 0 was killed"), 503, "engine_unavailable", "after 2.0 s: worker 0"),
    ],
)
async def test_there_may_be_none(
    tokenizer: Tokenizer, outcome: ProfileOutcome, status: int, code: str, text: str
) -> None:
    async with in_process(replying(tokenizer, outcome), tokenizer, keys=BOTH) as frontend:
        answer = await frontend.http.post("/admin/profile", json={}, headers=bearer(ADMIN))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert text in error["message"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"num_steps": 0}, "num_steps"),
        ({"num_steps": 101}, "num_steps"),
        ({"seconds": 0}, "seconds"),
        ({"seconds": 61}, "seconds"),
        ({"format": "pickle"}, "format"),
        ({"steps": 3}, "steps"),
        ({"ranks": []}, "ranks"),
        ({"ranks": [-1]}, "ranks[0]"),
    ],
)
async def test_wrong_fields_are_named(tokenizer: Tokenizer, body: dict[str, Any], field: str) -> None:
    core = replying(tokenizer, ProfileOutcome("steps"))
    async with in_process(core, tokenizer, keys=BOTH) as frontend:
        answer = await frontend.http.post("/admin/profile", json=body, headers=bearer(ADMIN))
    assert (answer.status_code, answer.json()["error"]["param"], core.sent(Call)) == (400, field, [])
