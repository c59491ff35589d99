"""A completion that streams beside a test, and whether it came to its end. Knows no processes."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.e2e.server import DEADLINE, Server


@contextmanager
def streaming(server: Server, max_tokens: int, **fields: object) -> Iterator["Stream"]:
    """A request that streams in a thread of its own; its first token has come when the block begins."""
    stream = Stream(server, max_tokens, **fields)
    stream.thread.start()
    assert stream.first.wait(DEADLINE)
    yield stream
    stream.thread.join(DEADLINE)
    assert not stream.thread.is_alive()


class Stream:
    def __init__(self, server: Server, max_tokens: int, **fields: object) -> None:
        self.events: list[str] = []
        self.broken = False  # whether it ended without an end
        self.first = threading.Event()
        self.thread = threading.Thread(target=self._read)
        self._url = f"{server.address}/v1/completions"
        self._body = {
            "model": server.model(),
            "prompt": "Once upon a time",
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "stream": True,
            **fields,
        }

    def text(self) -> str:
        """What it was given so far."""
        chunks = (json.loads(event) for event in self.events if event.startswith("{"))
        return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])

    def _read(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=DEADLINE) as response:
                for line in response.iter_lines():
                    if line:
                        self.events.append(line.removeprefix("data: "))
                        self.first.set()
        except httpx.TransportError:
            self.broken = True


def ended_whole(stream: Stream, num_tokens: int) -> bool:
    """Whether it has all its tokens and an end."""
    *_, finish, usage, done = stream.events
    reason = json.loads(finish)["choices"][0]["finish_reason"]
    return done == "[DONE]" and reason == "length" and json.loads(usage)["usage"]["completion_tokens"] == num_tokens


def accepts(server: Server) -> bool:
    """Whether it takes new requests."""
    try:
        return httpx.get(f"{server.address}/health", timeout=DEADLINE).status_code == 200
    except httpx.TransportError:
        return False
