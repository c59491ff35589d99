"""A server is killed in mid-stream, and another one with the same model goes on with its streams; others refuse."""

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import DEADLINE, Server, until
from tests.tiny_model import write_tiny_model

LENGTH = {"max_tokens": 1000, "ignore_eos": True}
DRAWN = {"temperature": 1, "top_p": 1}
MESSAGES = [{"role": "user", "content": "Tell me of the sea."}]
# One greedy, one drawn by a seed that the server draws, two choices of a chat, and one with a key.
REQUESTS: tuple[tuple[str, dict[str, Any], dict[str, str]], ...] = (
    ("/v1/completions", {"prompt": "The sea is", "temperature": 0}, {"accept": "text/event-stream"}),
    ("/v1/completions", {"prompt": "The sea is", **DRAWN}, {"accept": "text/event-stream"}),
    ("/v1/chat/completions", {"messages": MESSAGES, "n": 2, **DRAWN}, {"accept": "text/event-stream"}),
    ("/v1/completions", {"prompt": "A ship", **DRAWN}, {"idempotency-key": "one"}),
)


class Read:
    """A stream that is read in a thread of its own until it ends or breaks off."""

    def __init__(self, address: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> None:
        self.path, self.body, self.headers = path, body | LENGTH, headers
        self.blocks: list[str] = []
        self._address = address
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    @property
    def last_id(self) -> str:
        """That of the last whole event."""
        return self.blocks[-1].split("\n")[0].removeprefix("id: ")

    def texts(self, rest: str) -> list[str]:
        """Each choice's text, with the rest that came from elsewhere."""
        texts = ["" for _ in range(self.body.get("n", 1))]
        for block in [*self.blocks, *rest.split("\n\n")[:-1]]:
            data = block.rpartition("data: ")[2]
            for choice in [] if data == "[DONE]" else json.loads(data)["choices"]:
                texts[choice["index"]] += choice.get("text") or choice.get("delta", {}).get("content") or ""
        return texts

    def _read(self) -> None:
        unread = ""
        try:
            body = self.body | {"stream": True}
            with httpx.stream(
                "POST", self._address + self.path, json=body, headers=self.headers, timeout=DEADLINE
            ) as answer:
                for text in answer.iter_text():
                    *blocks, unread = (unread + text).split("\n\n")
                    self.blocks += blocks
        except httpx.TransportError:
            pass  # What was read stands; its last event may be cut off, and is dropped.


def whole(server: Server, read: Read) -> list[str]:
    """What an uninterrupted answer with the same seed says."""
    seed = int(read.last_id.split(".")[2], 16)
    answer = httpx.post(server.address + read.path, json=read.body | {"seed": seed}, timeout=DEADLINE)
    return [choice.get("text") or choice["message"]["content"] for choice in answer.json()["choices"]]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Read], str]:
    """Streams whose server was killed under them, and its model."""
    model = write_tiny_model(tmp_path_factory.mktemp("tiny") / "one", max_position_embeddings=4096)
    with Server(model) as first:
        reads = [Read(first.address, *request) for request in REQUESTS]
        until(lambda: all(len(read.blocks) > 4 for read in reads), "events of every stream")
        for process in first.processes():  # its supervisor before those that it would replace
            process.kill()
        for read in reads:
            read.thread.join(DEADLINE)
        assert not any("[DONE]" in read.blocks[-1] for read in reads)
    return reads, model


def test_the_streams_of_a_killed_server_go_on_at_another(broken: tuple[list[Read], str]) -> None:
    reads, model = broken
    with Server(model, "--served-model-name", "another-name") as second:
        for read in reads:
            headers = read.headers | {"last-event-id": read.last_id}
            rest = httpx.post(
                second.address + read.path, json=read.body | {"stream": True}, headers=headers, timeout=DEADLINE
            )
            assert rest.status_code == 200, rest.text
            assert rest.text.endswith("data: [DONE]\n\n")
            assert read.texts(rest.text) == whole(second, read)


@pytest.mark.full
def test_a_server_with_another_model_does_not_go_on_with_them(broken: tuple[list[Read], str], tmp_path: Path) -> None:
    reads, _ = broken
    with Server(write_tiny_model(tmp_path / "other", max_position_embeddings=4096, seed=1)) as other:
        for read in reads:
            headers = read.headers | {"last-event-id": read.last_id}
            answer = httpx.post(
                other.address + read.path, json=read.body | {"stream": True}, headers=headers, timeout=DEADLINE
            )
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "resume_conflict")
        assert other.metric("vllm:generation_tokens_total") == 0
