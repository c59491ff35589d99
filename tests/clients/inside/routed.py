"""The checks of a router in front of two scripted servers, which both routers' scripts share.

It uses the standard library alone, as `checks`.
"""

import http.client
import json
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from checks import DEADLINE, ScriptedServer, Servers, check, is_idle, main, metric, wait_until

HELLO = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
LONG = {**HELLO, "messages": [{"role": "user", "content": "Tell a long story."}], "stream": True}
ANSWER = "Hello from the script."

Command = Callable[[int, int, list[str]], list[str]]


class Routed:
    """A router in front of two servers: `command` gives its command line for a port, another port, and the servers."""

    def __init__(self, servers: Servers, command: Command) -> None:
        self.servers = [ScriptedServer(servers) for _ in range(2)]
        port, other = free_port(), free_port()
        self.address = f"http://127.0.0.1:{port}"
        with (servers.folder / "router.log").open("w") as log:
            self._process = subprocess.Popen(
                command(port, other, [server.address for server in self.servers]), stdout=log, stderr=log
            )

    def __enter__(self) -> "Routed":
        try:
            wait_until(self._is_listening, "the router to listen")
        except AssertionError:
            self._stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON of an answer; an error raises."""
        return post(self.address, path, body)

    def begin(self, body: dict[str, Any]) -> http.client.HTTPConnection:
        """Begin a stream and read its first bytes; to close what is given is to leave."""
        connection = http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=DEADLINE)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        assert answer.readline().startswith(b"data: ")
        return connection

    def counts(self) -> list[float]:
        """How many requests each server has answered."""
        return [metric(server.address, "vllm:request_success_total") for server in self.servers]

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for server in self.servers:
            server.stop()

    def _is_listening(self) -> bool:
        assert self._process.poll() is None, f"the router has ended with {self._process.returncode}"
        return is_healthy(self.address)


def post(address: str, path: str, body: dict[str, Any]) -> Any:
    """The JSON of an answer; an error raises."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{path}: {error.code} {error.read()[:500]!r}") from None


def is_healthy(address: str) -> bool:
    """Whether a server or a router takes requests."""
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=DEADLINE) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def check_router(command: Command) -> None:
    """Run the checks of one router. Its command line takes a `--policy`, of which the last one counts."""

    @check
    def answers(servers: Servers) -> None:
        with Routed(servers, command) as routed:
            _check_answers(routed)

    @check
    def balancing(servers: Servers) -> None:
        with Routed(servers, command) as routed:
            _check_balancing(routed)

    @check
    def balancing_by_load(servers: Servers) -> None:
        with Routed(servers, lambda *given: [*command(*given), "--policy", "power_of_two"]) as routed:
            _check_answers(routed)

    @check
    def cancel(servers: Servers) -> None:
        with Routed(servers, command) as routed:
            _check_cancel(routed)

    @check
    def failover(servers: Servers) -> None:
        with Routed(servers, command) as routed:
            _check_failover(routed)

    main()


def _check_answers(routed: Routed) -> None:
    """Chat, completions, embeddings and Responses pass."""
    assert routed.post("/v1/chat/completions", HELLO)["choices"][0]["message"]["content"] == ANSWER
    completion = {"model": "scripted", "prompt": "Hi", "max_tokens": 50}
    assert routed.post("/v1/completions", completion)["choices"][0]["text"] == ANSWER
    assert routed.post("/v1/embeddings", {"model": "scripted", "input": "Hi"})["data"][0]["embedding"]
    assert routed.post("/v1/responses", {"model": "scripted", "input": "Hi"})["status"] == "completed"


def _check_balancing(routed: Routed) -> None:
    """Each of two servers gets its share."""
    before = routed.counts()
    for _ in range(10):
        routed.post("/v1/chat/completions", HELLO)
    assert all(now > then for now, then in zip(routed.counts(), before, strict=True)), routed.counts()


def _check_cancel(routed: Routed) -> None:
    """Who leaves a stream ends its request."""
    routed.begin(LONG).close()
    wait_until(lambda: all(is_idle(server.address) for server in routed.servers), "the request to end")


def _check_failover(routed: Routed) -> None:
    """After the end of one server the other one answers."""
    routed.servers[0].stop()
    for _ in range(6):
        assert routed.post("/v1/chat/completions", HELLO)["choices"]
