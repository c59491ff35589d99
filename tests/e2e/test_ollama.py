"""Ollama's API and commands against a real server with the embedded model."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.e2e.server import Server

SCHEMA = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
CHAT = {"model": "smol", "messages": [{"role": "user", "content": "Say hi."}]}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--served-model-name", "smol", "--max-model-len", "2048", "--kv-cache-memory-bytes", "64MiB") as served:
        yield served


def run(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyllm", *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False)


def test_a_stream_adds_up_to_the_answer_and_to_openais(server: Server) -> None:
    options = {"num_predict": 12, "temperature": 0, "num_ctx": 4096}
    with server.http() as http:
        streamed = http.post("/api/chat", json={**CHAT, "options": options})
        whole = http.post("/api/chat", json={**CHAT, "options": options, "stream": False}).json()
        openai = http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 12, "temperature": 0}).json()
    *parts, last = [json.loads(line) for line in streamed.text.splitlines()]
    text = "".join(part["message"]["content"] for part in parts)
    assert text == whole["message"]["content"] == openai["choices"][0]["message"]["content"] != ""
    assert (last["done_reason"], last["eval_count"]) == ("length", 12)
    assert last["prompt_eval_count"] == openai["usage"]["prompt_tokens"]
    assert last["total_duration"] >= last["eval_duration"] > 0


def test_prompts_formats_and_embeddings(server: Server) -> None:
    greedy = {"temperature": 0, "num_predict": 30}
    with server.http() as http:
        raw = {"model": "smol", "prompt": "The capital of France is", "raw": True, "stream": False, "options": greedy}
        assert "Paris" in http.post("/api/generate", json=raw).json()["response"]
        answer = http.post("/api/chat", json={**CHAT, "format": SCHEMA, "options": greedy, "stream": False}).json()
        assert isinstance(json.loads(answer["message"]["content"])["number"], int)
        embedded = http.post("/api/embed", json={"model": "smol", "input": ["a", "b"]}).json()["embeddings"]
        openai = http.post("/v1/embeddings", json={"model": "smol", "input": ["a", "b"]}).json()["data"]
    assert embedded == [each["embedding"] for each in openai]


def test_the_commands_talk_to_the_server(server: Server) -> None:
    listed = run("ps", "--url", server.address)
    shown = run("show", "smol", "--url", server.address)
    kept = run("stop", "smol", "--url", server.address)
    unknown = run("stop", "other", "--url", server.address)
    asked = run("run", server.address, "Say", "hi.", given="Be short.")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["NAME", "smol:latest"]
    assert "quantization         Q4_1" in shown.stdout
    assert (kept.returncode, "the server keeps smol" in kept.stderr) == (1, True)
    assert (unknown.returncode, "model 'other' not found" in unknown.stderr) == (2, True)
    assert (asked.returncode, asked.stdout.strip() != "") == (0, True)


def test_the_commands_describe_this_machine() -> None:
    shown = run("show")
    local = json.loads(run("show", "--json").stdout)
    listed = run("list", "--json")
    available = run("models", "--available")
    assert shown.stdout.startswith("Model\n  architecture         llama\n  parameters           135M\n")
    assert (local["capabilities"], local["model_info"]["llama.context_length"]) == (
        ["completion", "tools", "embedding"],
        8192,
    )
    assert json.loads(listed.stdout)[0]["name"] == "(embedded)"
    rows = [line.split() for line in available.stdout.splitlines()]
    assert rows[0] == ["NAME", "SIZE", "FITS", "HERE", "MODEL"]
    assert ["qwen3:4b", "2.50", "GB"] in [row[:3] for row in rows]
