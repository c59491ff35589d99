"""A catalogue for real: models that take turns, one that cannot start, killed processes, and an end without a trace."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.e2e.server import Server, until
from tests.e2e.titles import API, CORE, find
from tests.tiny_model import write_tiny_model

FILE = """
models:
  one: one
  two: {{model: two, max-model-len: 128}}
  broken: {folder}/nothing.gguf
aliases:
  gpt-4o: one
"""


def catalogue_in(folder: Path) -> str:
    for name in ("one", "two"):
        (folder / name).mkdir()
        write_tiny_model(folder / name)
    path = folder / "models.yaml"
    path.write_text(FILE.format(folder=folder))
    return str(path)


def ask(server: Server, model: str, **fields: object) -> tuple[int, str]:
    """The status of one greedy completion, and its text or the error."""
    with server.http() as http:
        body = {"model": model, "prompt": "The sea is", "temperature": 0, "max_tokens": 8, **fields}
        answer = http.post("/v1/completions", json=body)
    content = answer.json()
    return answer.status_code, content["choices"][0]["text"] if answer.status_code == 200 else content["error"][
        "message"
    ]


def test_models_take_turns_and_none_costs_the_others_anything(tmp_path: Path) -> None:
    with Server("--models", catalogue_in(tmp_path), "--max-loaded-models", "1", "--admin-on-loopback") as server:
        names = ["one", "two", "broken", "gpt-4o", "two", "one"]
        with ThreadPoolExecutor(len(names)) as pool:
            answers = list(pool.map(lambda name: ask(server, name), names))
        (text,) = {text for name, (_, text) in zip(names, answers, strict=True) if name != "broken"}
        assert [status for status, _ in answers] == [200, 200, 503, 200, 200, 200]
        assert "there is no model at" in answers[2][1]
        assert len(find(server.process.pid, CORE)) <= 1

        # The next API process finds the model that is loaded.
        loaded = next(name for name in ("one", "two") if stage_of(server, name) == "loaded")
        core, api = server.titled(CORE), server.titled(API)
        api.send_signal(signal.SIGKILL)
        until(lambda: not api.is_running() and stage_of(server, loaded) == "loaded", "the next API process")
        assert ask(server, loaded) == (200, text)
        assert server.titled(CORE) == core

        core.send_signal(signal.SIGKILL)
        assert ask(server, loaded) == (200, text)

        with server.http() as http:
            unloaded = http.post("/v1/models/unload", json={"model": loaded}).json()
        assert unloaded["status"]["value"] == "unloaded"
        assert find(server.process.pid, CORE) == []
        assert ask(server, loaded) == (200, text)
        server.tree = server.processes()
        assert server.stop() == 0
        assert server.orphans() == []


def stage_of(server: Server, name: str) -> str:
    """How far a model is; empty while the server does not answer."""
    try:
        with server.http() as http:
            return str(http.get(f"/v1/models/{name}").json()["status"]["value"])
    except httpx.TransportError:
        return ""
