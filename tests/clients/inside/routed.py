"""A router in front of two servers, and its checks with scripted ones, which both routers' scripts share.

It uses the standard library alone, as `checks`.
"""

import http.client
import json
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from checks import DEADLINE, ModelServer, ScriptedServer, Servers, check, is_idle, main, metric, wait_until

HELLO = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
LONG = {**HELLO, "messages": [{"role": "user", "content": "Tell a long story."}]}
ANSWER = "Hello from the script."

Command = Callable[[int, int, list[str]], list[str]]


class Routed:
    """A router in front of servers, which end with it.

    `command` gives its command line for a port, another port, and the servers' addresses.
    """

    def __init__(self, servers: Sequence[ScriptedServer | ModelServer], command: Command, folder: Path) -> None:
        self.servers = servers
        port, other = free_port(), free_port()
        self.address = f"http://127.0.0.1:{port}"
        with (folder / "router.log").open("w") as log:
            self._process = subprocess.Popen(
                command(port, other, [server.address for server in self.servers]), stdout=log, stderr=log
            )

    def __enter__(self) -> "Routed":
        try:
            wait_until(self._has_servers, "the router to have its servers")
        except AssertionError:
            self._stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON of an answer; an error raises."""
        return post(self.address, path, body)

    def counts(self) -> list[float]:
        """How many requests each server has answered."""
        return [metric(server.address, "vllm:request_success_total") for server in self.servers]

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for server in self.servers:
            server.stop()

    def _has_servers(self) -> bool:
        """Whether it knows all of them; one of the routers listens before it does."""
        assert self._process.poll() is None, f"the router has ended with {self._process.returncode}"
        try:
            with urllib.request.urlopen(f"{self.address}/readiness", timeout=DEADLINE) as answer:
                return bool(json.loads(answer.read())["healthy_workers"] == len(self.servers))
        except OSError:
            return False


class Stream:
    """A stream that has begun. `lines` is what it has said so far; to close it is to leave."""

    def __init__(self, address: str, path: str, body: dict[str, Any], headers: Mapping[str, str] = {}) -> None:
        self.lines: list[str] = []
        self._connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=DEADLINE)
        content = {"Content-Type": "application/json"}
        self._connection.request("POST", path, json.dumps(body | {"stream": True}), {**content, **headers})
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()

    def read(self, num_lines: int | None = None) -> "Stream":
        """Read so many lines, or all to its end; what breaks off without an end raises `http.client.HTTPException`."""
        while (num_lines is None or len(self.lines) < num_lines) and (line := self._answer.readline()):
            self.lines.append(line.decode().rstrip("\n"))
        return self

    def close(self) -> None:
        """Leave."""
        self._connection.close()


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

    def scripted(servers: Servers, *flags: str) -> Routed:
        workers = [ScriptedServer(servers) for _ in range(2)]
        return Routed(workers, lambda *given: [*command(*given), *flags], servers.folder)

    @check
    def answers(servers: Servers) -> None:
        with scripted(servers) as routed:
            _check_answers(routed)

    @check
    def balancing(servers: Servers) -> None:
        with scripted(servers) as routed:
            _check_balancing(routed)

    @check
    def balancing_by_load(servers: Servers) -> None:
        with scripted(servers, "--policy", "power_of_two") as routed:
            _check_answers(routed)

    @check
    def cancel(servers: Servers) -> None:
        with scripted(servers) as routed:
            _check_cancel(routed)

    @check
    def failover(servers: Servers) -> None:
        with scripted(servers) as routed:
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
    stream = Stream(routed.address, "/v1/chat/completions", LONG).read(1)
    assert stream.lines[0].startswith("data: ")
    stream.close()
    wait_until(lambda: all(is_idle(server.address) for server in routed.servers), "the request to end")


def _check_failover(routed: Routed) -> None:
    """After the end of one server the other one answers."""
    routed.servers[0].stop()
    for _ in range(6):
        assert routed.post("/v1/chat/completions", HELLO)["choices"]
