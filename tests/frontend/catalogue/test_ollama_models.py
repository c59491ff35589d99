"""Ollama's API of a catalogue: its lists, names with a tag, models that load, stay and leave by `keep_alive`."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyllm.frontend.text.tokenizer import Tokenizer
from tests.frontend.catalogue.fake_supervisor import FakeSupervisor
from tests.frontend.catalogue.test_catalogue_app import CHAT, SIZES, Stream, serving
from tests.frontend.ignoring import HEADER
from tests.waiting import until


async def chat(http: httpx.AsyncClient, name: str, **body: Any) -> dict[str, Any]:
    answer = await http.post("/api/chat", json=CHAT | {"model": name, "stream": False} | body)
    assert answer.status_code == 200, answer.text
    assert HEADER not in answer.headers
    whole: dict[str, Any] = answer.json()
    return whole


async def names(http: httpx.AsyncClient, path: str) -> list[str]:
    return [model["name"] for model in (await http.get(path)).json()["models"]]


async def test_models_are_chosen_by_name_with_or_without_a_tag(tokenizer: Tokenizer, tmp_path: Path) -> None:
    async with serving(tmp_path, tokenizer, aliases={"gpt:latest": {"b": 1.0}}) as (_, http):
        for name, text in {"a": "I am a", "a:latest": "I am a", "gpt": "I am b", "gpt:latest": "I am b"}.items():
            answer = await chat(http, name)
            assert (answer["model"], answer["message"]["content"]) == (name, text)
        assert (await http.post("/api/show", json={"name": "b:latest"})).json()["capabilities"]
        unknown = await http.post("/api/chat", json=CHAT | {"model": "x"})
        nameless = await http.post("/api/chat", json=CHAT)
    assert (unknown.status_code, unknown.json()) == (404, {"error": "model 'x' not found"})
    assert (nameless.status_code, nameless.json().keys()) == (400, {"error"})


async def test_a_model_is_described_by_its_files_and_not_loaded_for_that(tokenizer: Tokenizer, tmp_path: Path) -> None:
    embedded, elsewhere = {"files": "", "max_model_len": 96}, {"files": "owner/elsewhere"}
    async with serving(tmp_path, tokenizer, a=embedded, b=elsewhere) as (served, http):
        shown = (await http.post("/api/show", json={"model": "a"})).json()
        missing = await http.post("/api/show", json={"model": "b"})
        assert [served.model(name).stage for name in "abc"] == ["unloaded"] * 3
        assert (await http.post("/api/show", json={"model": "c"})).json()["capabilities"]
        assert served.model("c").stage == "loaded"
    assert (shown["details"]["family"], shown["model_info"]["llama.context_length"]) == ("llama", 96)
    assert "completion" in shown["capabilities"]
    assert (missing.status_code, missing.json()) == (404, {"error": "model 'b' not found"})


async def test_lists_have_all_models_and_those_that_are_loaded(tokenizer: Tokenizer, tmp_path: Path) -> None:
    async with serving(tmp_path, tokenizer, aliases={"gpt-4o": {"b": 1.0}}) as (_, http):
        assert await names(http, "/api/tags") == ["a:latest", "b:latest", "c:latest", "gpt-4o:latest"]
        assert await names(http, "/api/ps") == []
        await chat(http, "b")
        assert await names(http, "/api/ps") == ["b:latest"]
        (running,) = (await http.get("/api/ps")).json()["models"]
        assert (running["size"], running["expires_at"][:4]) == (SIZES["b"], "9999")
        assert (await http.get("/api/version")).json().keys() == {"version"}
        served = await http.post("/api/pull", json={"model": "c"})
    assert served.json() == {"status": "success"}


async def test_keep_alive_says_how_long_a_model_stays(tokenizer: Tokenizer, tmp_path: Path) -> None:
    now = [0.0]
    async with serving(tmp_path, tokenizer, clock=lambda: now[0]) as (served, http):
        await chat(http, "a", keep_alive="1m")
        (running,) = (await http.get("/api/ps")).json()["models"]
        assert running["expires_at"][:2] == "20"
        now[0] = 59.0
        served.catalogue.tick()
        assert await names(http, "/api/ps") == ["a:latest"]
        now[0] = 60.0
        served.catalogue.tick()
        await until(lambda: served.model("a").stage == "unloaded")
        await chat(http, "a", keep_alive=0)  # It leaves after this request.
        await until(lambda: served.model("a").stage == "unloaded")
        await chat(http, "a")
        now[0] = 1e6
        served.catalogue.tick()
        assert await names(http, "/api/ps") == ["a:latest"]
        wrong = await http.post("/api/chat", json=CHAT | {"model": "a", "keep_alive": "soon"})
    assert (wrong.status_code, "keep_alive is 'soon'" in wrong.json()["error"]) == (400, True)


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_a_request_without_content_loads_or_unloads(path: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    async with serving(tmp_path, tokenizer) as (served, http):
        loaded = (await http.post(path, json={"model": "a"})).json()
        assert (loaded["done_reason"], served.model("a").stage) == ("load", "loaded")
        unloaded = (await http.post(path, json={"model": "a:latest", "keep_alive": 0})).json()
        assert (unloaded["done_reason"], served.model("a").stage) == ("unload", "unloaded")
        again = (await http.post(path, json={"model": "b", "keep_alive": 0})).json()
        assert (again["done_reason"], served.model("b").stage) == ("unload", "unloaded")
        assert served.model("b").num_loads == 0


async def test_a_stream_that_waits_for_its_model_has_lines_alone(tokenizer: Tokenizer, tmp_path: Path) -> None:
    supervisor = FakeSupervisor(SIZES, 110)
    supervisor.goes_on.clear()
    async with serving(tmp_path, tokenizer, supervisor) as (served, http):
        app = http._transport.app  # type: ignore[attr-defined]  # that of `ASGITransport`
        stream = Stream(app, "/api/chat", CHAT | {"model": "a", "stream": True})
        await until(lambda: served.model("a").stage == "loading")
        assert stream.sent == []
        supervisor.goes_on.set()
        await stream.ended
    *parts, last = [json.loads(line) for line in stream.text.splitlines()]
    assert "".join(part["message"]["content"] for part in parts) == "I am a"
    assert last["done_reason"] == "stop"
