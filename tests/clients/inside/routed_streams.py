"""The checks of a router in front of two servers with a model: equal answers, and streams whose server ends.

What a client sees then differs from router to router; docs/clients.md says it, too.
"""

import json
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from checks import DEADLINE, ModelServer, Servers, check, metric
from routed import Command, Routed, Stream, is_healthy, post

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
QUESTION = [{"role": "user", "content": "What is the sea?"}]
# Long enough to be under way still when their server ends.
LONG: dict[str, dict[str, Any]] = {
    CHAT: {"model": "smol", "messages": QUESTION, "max_tokens": 300, "ignore_eos": True, "temperature": 1.0},
    COMPLETIONS: {"model": "smol", "prompt": "The sea", "max_tokens": 300, "ignore_eos": True, "temperature": 1.0},
}
ACCEPT = {"Accept": "text/event-stream"}


def check_streams(command: Command, passes_headers: Callable[[str], bool]) -> None:
    """Mark the checks of one router, which balances in turn; `passes_headers` says of which routes it does."""

    @check
    def two_models(servers: Servers) -> None:
        with ExitStack() as stack:
            models = [ModelServer(servers) for _ in range(2)]
            for model in models:
                stack.callback(model.stop)
            for model in models:
                model.wait()
            routed = stack.enter_context(Routed(models, command, servers.folder))
            _check_equal_answers(routed)
            _check_ids(routed, passes_headers)
            killed = _check_resumed(routed, models) if passes_headers(CHAT) else _check_begun_again(routed, models)
            models.remove(killed)
            _check_drained(routed, models[0])


def _check_equal_answers(routed: Routed) -> None:
    """The router has the servers' model, and answers whole and streamed as they do."""
    assert is_healthy(routed.address)
    with urllib.request.urlopen(f"{routed.address}/v1/models", timeout=DEADLINE) as answer:
        assert [model["id"] for model in json.loads(answer.read())["data"]] == ["smol"]
    for path, body in LONG.items():
        brief = body | {"max_tokens": 20, "temperature": 0.0}
        direct = _text(path, post(routed.servers[0].address, path, brief))
        assert [_text(path, post(routed.address, path, brief)) for _ in range(2)] == [direct] * 2
        assert [_joined(Stream(routed.address, path, brief).read().lines) for _ in range(2)] == [direct] * 2


def _check_ids(routed: Routed, passes_headers: Callable[[str], bool]) -> None:
    """Events have ids where the router passes the header on that asks for them."""
    brief: dict[str, dict[str, Any]] = {path: body | {"max_tokens": 2} for path, body in LONG.items()} | {
        "/v1/responses": {"model": "smol", "input": "Hi", "max_output_tokens": 2}
    }
    for path, body in brief.items():
        lines = Stream(routed.address, path, body, ACCEPT).read().lines
        assert any(line.startswith("id: ") for line in lines) == passes_headers(path), (path, lines)


def _check_resumed(routed: Routed, models: list[ModelServer]) -> ModelServer:
    """The stream of a server that is killed goes on at the other one, whose own is not disturbed; gives the killed."""
    chat = Stream(routed.address, CHAT, LONG[CHAT], ACCEPT).read(60)
    (killed,) = _running(models)
    other = Stream(routed.address, COMPLETIONS, LONG[COMPLETIONS], ACCEPT).read(60)
    (left,) = [model for model in _running(models) if model is not killed]
    killed.kill()
    # The client sees an end, and no error: that the last event is missing is all that tells.
    begun = _whole_events(chat.read().lines)
    assert "data: [DONE]" not in begun
    rest = Stream(routed.address, CHAT, LONG[CHAT], {"Last-Event-ID": _ids(begun)[-1]}).read().lines
    for path, lines in ((CHAT, begun + rest), (COMPLETIONS, other.read().lines)):
        assert lines[-2] == "data: [DONE]", lines[-4:]
        seed = int(_ids(lines)[0].split(".")[2], 16)
        whole = post(left.address, path, LONG[path] | {"seed": seed})
        assert _joined(lines) == _text(path, whole), path
    return killed


def _check_begun_again(routed: Routed, models: list[ModelServer]) -> ModelServer:
    """Without ids a stream ends where its server is killed, and begins again at the other one; gives the killed."""
    stream = Stream(routed.address, CHAT, LONG[CHAT] | {"seed": 7}, ACCEPT).read(40)
    (killed,) = _running(models)
    (left,) = [model for model in models if model is not killed]
    killed.kill()
    lines = _whole_events(stream.read().lines)
    assert "data: [DONE]" not in lines
    whole = _text(CHAT, post(left.address, CHAT, LONG[CHAT] | {"seed": 7}))
    assert whole.startswith(_joined(lines))
    again = Stream(routed.address, CHAT, LONG[CHAT] | {"seed": 7}, {"Last-Event-ID": "not passed on"})
    assert _joined(again.read().lines) == whole
    return killed


def _check_drained(routed: Routed, server: ModelServer) -> None:
    """A server that is told to end finishes its stream first."""
    stream = Stream(routed.address, COMPLETIONS, LONG[COMPLETIONS]).read(20)
    server.process.terminate()
    assert stream.read().lines[-2] == "data: [DONE]", stream.lines[-4:]


def _running(models: list[ModelServer]) -> list[ModelServer]:
    """Which of the servers have a request."""
    found = [model for model in models if metric(model.address, "vllm:num_requests_running") > 0]
    assert found, "the streams have ended already"
    return found


def _whole_events(lines: list[str]) -> list[str]:
    """Without the part of an event at the end that was cut off."""
    return lines[: len(lines) - lines[::-1].index("")]


def _ids(lines: list[str]) -> list[str]:
    return [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]


def _joined(lines: list[str]) -> str:
    """The text of a stream's only choice."""
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in choices)


def _text(path: str, answer: Any) -> str:
    """The text of a whole answer's only choice."""
    (choice,) = answer["choices"]
    return str(choice["message"]["content"] if path == CHAT else choice["text"])
