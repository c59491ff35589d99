"""Names that callers choose are told to them, to the log and to metrics, within bounds, as the server's flag says."""

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pyllm.config.server_settings import ServerConfig, UnknownFields
from pyllm.errors import RequestError
from pyllm.frontend.http.ignored_fields import (
    MAX_COUNTED_NAMES,
    MAX_HEADER_BYTES,
    MAX_NAME_CHARACTERS,
    MAX_NAMES,
    OTHER,
    IgnoredFields,
    RequestFields,
)
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.frontend.hostile import VALID
from tests.frontend.ignoring import HEADER
from tests.frontend.serving import Frontend, answering, behind_uvicorn, in_process

# No more than this of a log, whatever requests are like.
MAX_LOG_CHARACTERS = MAX_COUNTED_NAMES * (MAX_NAME_CHARACTERS + 200)
HOSTILE: dict[str, dict[str, Any]] = {
    "control characters": {"a\x00b": 1, "\x1b[31mred": 1, "\u2028": 1},
    "header injection": {"a\r\nset-cookie: b=c\r\n\r\n": 1, "a\nb": 1},
    "commas": {"a, b": 1, "a,b": 1, "+5 more": 1},
    "not ASCII": {"größe": 1, "🙂": 1, "\u202eevil": 1},
    "blanks": {" ": 1, "\t": 1},
    "a long name": {"x" * 1_000_000: 1},
    "a long value": {"\x7f": "x" * 1_000_000},
    "a deep value": {"/": {"a": [{"b": "x" * 1000}] * 900}},
    "quotes": {'a"} 1\npyllm:evil{field="': 1, "a\\": 1, "{a}": 1},
}


def told(names: list[str]) -> str:
    """The header of the first request of a process, which has these fields."""
    fields = RequestFields()
    for name in names:
        fields.ignore(name, "refused")
    return IgnoredFields().count(fields).decode()


async def counts(frontend: Frontend) -> dict[str, float]:
    """What `/metrics` has by name."""
    response = await frontend.http.get("/metrics")
    return {
        sample.labels["field"]: sample.value
        for family in text_string_to_metric_families(response.text)
        if family.name == "pyllm:ignored_fields"
        for sample in family.samples
        if sample.name.endswith("_total")
    }


def test_names_are_told_once_in_their_order() -> None:
    assert told([]) == ""
    assert told(["b", "a.c", "b", "tools.web-search_2025"]) == "b, a.c, tools.web-search_2025"


def test_names_that_cannot_be_shown_are_others() -> None:
    assert told(["a", "b c", "\r\n", "é"]) == "a, and others"
    assert told([""]) == "others"
    longest = "x" * MAX_NAME_CHARACTERS
    assert told([longest, longest + "x"]) == f"{longest}, and others"


def test_a_header_has_its_bounds() -> None:
    short = told([f"n{number}" for number in range(1000)])
    assert short == ", ".join(f"n{number}" for number in range(MAX_NAMES)) + ", and others"
    long = told([f"{number:0{MAX_NAME_CHARACTERS}}" for number in range(1000)])
    assert MAX_HEADER_BYTES - MAX_NAME_CHARACTERS - 32 < len(long) <= MAX_HEADER_BYTES
    *names, rest = long.split(", ")
    assert rest == "and others"
    assert names


@given(st.lists(st.text(max_size=100) | st.text("ab.", min_size=1, max_size=100), max_size=100))
def test_any_names_make_a_header_of_visible_characters(names: list[str]) -> None:
    header = told(names)
    assert len(header) <= MAX_HEADER_BYTES
    assert header.isascii()
    assert header.isprintable()
    shown = {part for part in header.split(", ") if part not in ("", "others", "and others")}
    assert shown <= set(names)
    assert (shown == set(names)) == ("others" not in header)


def test_each_name_is_logged_once_and_no_more_than_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    ignored = IgnoredFields()
    with caplog.at_level(logging.WARNING, "pyllm"):
        for number in range(3 * MAX_COUNTED_NAMES):
            for _ in range(2):
                fields = RequestFields()
                fields.ignore(f"n{number}", "refused")
                assert ignored.count(fields) == f"n{number}".encode()
    assert len(ignored.counts) == MAX_COUNTED_NAMES + 1
    assert ignored.counts["n0"] == 2
    assert ignored.counts[OTHER] == 4 * MAX_COUNTED_NAMES
    assert [record.args for record in caplog.records] == [(f"n{number}",) for number in range(MAX_COUNTED_NAMES)]


def test_names_that_requests_choose_leave_room_for_hints() -> None:
    ignored = IgnoredFields()
    for start in range(0, 2 * MAX_COUNTED_NAMES, MAX_NAMES):
        fields = RequestFields()
        fields.ignore_unknown("", [f"n{number}" for number in range(start, start + MAX_NAMES)])
        ignored.count(fields)
    fields = RequestFields()
    fields.ignore_hint("verbosity", refusable=True)
    assert ignored.count(fields) == b"verbosity"
    assert ignored.counts["verbosity"] == 1
    assert len(ignored.counts) == MAX_COUNTED_NAMES + 2


def test_a_strict_server_is_told_the_first_and_a_silent_one_nothing() -> None:
    with pytest.raises(RequestError, match="nope is not supported yet") as refused:
        RequestFields("refuse").ignore_hint("nope", refusable=True)
    assert refused.value.parameter == "nope"
    with pytest.raises(RequestError, match="because") as refused:
        RequestFields("refuse").ignore("x" * 1_000_000, "because")
    assert len(refused.value.parameter or "") == MAX_NAME_CHARACTERS
    silent = RequestFields("ignore")
    silent.ignore("nope", "refused")
    assert list(silent.names) == []


@pytest.mark.parametrize("route", VALID)
@pytest.mark.parametrize("policy", ["warn", "ignore", "refuse"])
async def test_every_route_does_as_the_flag_says(tokenizer: Tokenizer, route: str, policy: UnknownFields) -> None:
    body = {name: value for name, value in VALID[route].items() if name != "model"}
    server = ServerConfig(unknown_fields=policy)
    async with in_process(answering(tokenizer, "ok"), tokenizer, server=server) as frontend:
        plain = await frontend.http.post(route, json=body)
        response = await frontend.http.post(route, json={**body, "nope": {"a": 1}})
        counted = await counts(frontend)
    assert plain.status_code == 200, plain.text
    assert HEADER not in plain.headers
    if policy == "refuse":
        assert response.status_code == 400
        assert "nope is not a known field" in response.json()["error"]["message"]
    else:
        assert response.status_code == 200
    assert response.headers.get(HEADER) == ("nope" if policy == "warn" else None)
    assert counted == ({"nope": 1} if policy == "warn" else {})


async def test_fields_of_a_request_that_is_refused_are_told_too(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        response = await frontend.http.post("/v1/completions", json={"prompt": "x", "temperature": -1, "nope": 1})
    assert (response.status_code, response.headers[HEADER]) == (400, "nope")


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("policy", ["warn", "refuse"])
async def test_hostile_names_grow_neither_header_nor_log_nor_metrics(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture, kind: str, policy: UnknownFields
) -> None:
    extras = HOSTILE[kind]
    body = {"messages": [{"role": "user", "content": "Hi", **extras}], **extras}
    server = ServerConfig(unknown_fields=policy)
    with caplog.at_level(logging.INFO, "pyllm"):
        async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer, server=server) as frontend:
            await frontend.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]})
            before = len((await frontend.http.get("/metrics")).text)
            response = await frontend.http.post("/v1/chat/completions", json=body)
            counted = await counts(frontend)
            after = len((await frontend.http.get("/metrics")).text)
    assert "set-cookie" not in response.headers
    assert after - before < 1000
    assert len(caplog.text) < 5000
    assert not any(name in caplog.text for name in extras if name.strip())
    if policy == "refuse":
        assert response.status_code == 400
        assert len(response.text) < 2000
        assert (HEADER in response.headers, counted) == (False, {})
    else:
        assert response.status_code == 200
        assert response.headers[HEADER] == "others"
        assert counted == {OTHER: 1}


async def test_a_hundred_thousand_names_are_bounded_everywhere(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "pyllm"):
        async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer) as frontend:
            for turn in range(6):
                extras = {f"{turn}_{number}": None for number in range(100_000)}
                response = await frontend.http.post("/v1/completions", json={"prompt": "x", **extras})
                assert response.status_code == 200
                assert len(response.headers[HEADER]) <= MAX_HEADER_BYTES
                assert response.headers[HEADER].endswith(", and others")
            counted = await counts(frontend)
    assert MAX_COUNTED_NAMES <= len(counted) <= MAX_COUNTED_NAMES + 1
    assert sum(counted.values()) == 6 * (MAX_NAMES + 1)
    assert len(caplog.text) < MAX_LOG_CHARACTERS
    assert caplog.text.count("--unknown-fields") == len(counted) - 1  # `OTHER` is no name of a field.


async def test_streams_are_told_as_well(tokenizer: Tokenizer) -> None:
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer) as frontend:
        body = {"prompt": "x", "stream": True, "max_tokens": 1000, "nope": 1}
        response = await frontend.http.post("/v1/completions", json=body)
        counted = await counts(frontend)
    room = int(response.headers["pyllm-max-tokens"])
    assert (response.headers[HEADER], room < 256, counted) == ("nope", True, {"nope": 1})


async def test_pages_of_other_origins_may_read_the_header(tokenizer: Tokenizer) -> None:
    server = ServerConfig(allowed_origins=("https://page",))
    async with in_process(answering(tokenizer, "ok"), tokenizer, server=server) as frontend:
        body = {"prompt": "x", "nope": 1}
        response = await frontend.http.post("/v1/completions", json=body, headers={"origin": "https://page"})
    assert HEADER in response.headers["access-control-expose-headers"]


async def test_a_request_that_runs_out_of_time_is_not_tried_again(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        for route in ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/embeddings"):
            body = {name: value for name, value in VALID[route].items() if name != "model"}
            response = await frontend.http.post(route, json=body, headers={"x-request-timeout": "0.000000001"})
            assert (response.status_code, response.headers["x-should-retry"]) == (408, "false"), route


async def test_an_answer_that_is_kept_or_taken_up_again_has_the_headers(tokenizer: Tokenizer) -> None:
    body = {"prompt": "x", "stream": True, "max_tokens": 1000, "nope": 1}
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        asked = [
            await frontend.http.post("/v1/completions", json=body, headers={"idempotency-key": "k"}) for _ in range(2)
        ]
        event = asked[0].text.partition("id: ")[2].partition("\n")[0]
        asked.append(await frontend.http.post("/v1/completions", json=body, headers={"last-event-id": event}))
        counted = await counts(frontend)
    for response in asked:
        assert (response.headers[HEADER], int(response.headers["pyllm-max-tokens"]) < 256) == ("nope", True)
    assert counted == {"nope": 2}  # What is kept is no request anew.
