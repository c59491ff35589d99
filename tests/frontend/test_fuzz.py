"""A fuzzed body or header ends neither the server nor another client's stream, and is answered without a secret.

`make fuzz` sends the same kinds of cases, many more, to a real `pyllm serve`.
"""

import asyncio
import http.client
import json
import logging
import threading
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Submit
from tests.client.fake_core import MODEL, ScriptedCore
from tests.frontend import hostile
from tests.frontend.hostile import Case
from tests.frontend.serving import Frontend, behind_uvicorn
from tests.tiers import cases

INTERVAL = 0.002  # seconds between two steps of the core
LONG = msgspec.structs.replace(MODEL, max_model_len=1 << 20, kv_cache_tokens=1 << 20)
NEIGHBOUR = [42, 43, 44]  # the prompt of the stream that nobody may disturb
SETTINGS = settings(database=None, suppress_health_check=list(HealthCheck))


class Ticking(ScriptedCore):
    """A core that takes its time. Its neighbour's stream goes on until `end`; other answers are short."""

    def __init__(self, tokens: list[int]) -> None:
        super().__init__(lambda prompt, sample: self.endless if prompt == NEIGHBOUR else tokens, LONG)
        self.endless = tokens * 20_000

    def _schedule(self) -> None:
        if not self._scheduled and self.running:
            self._scheduled = True
            asyncio.get_running_loop().call_later(INTERVAL, self._step)

    def end(self) -> None:
        """Let every stream end with its next token."""
        for key, (submit, _, offset) in list(self.running.items()):
            first: Submit = msgspec.structs.replace(submit, max_tokens=offset + 1)
            self.running[key] = first, self.endless, offset


class Served:
    """A server on a thread of its own, and a neighbour that reads a stream of it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.core = Ticking(tokenizer.encode("the sea "))
        self.frontend: Frontend
        self.faults: list[object] = []  # what nobody caught, and what is logged as an error
        self.texts: list[str] = []
        self._started = threading.Event()
        self._server = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._neighbour = threading.Thread(target=self._read)
        self._log = logging.Handler(logging.ERROR)
        self._log.emit = self.faults.append  # type: ignore[method-assign]

    def __enter__(self) -> "Served":
        logging.getLogger().addHandler(self._log)
        self._server.start()
        self._started.wait()
        self._neighbour.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self.core.end)
        self._neighbour.join()
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._server.join()
        logging.getLogger().removeHandler(self._log)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda loop, context: self.faults.append(context))
        self._stopping = asyncio.Event()
        async with behind_uvicorn(self.core, self.tokenizer) as self.frontend:
            self._started.set()
            await self._stopping.wait()

    def _read(self) -> None:
        connection = http.client.HTTPConnection(*self.frontend.address, timeout=hostile.PATIENCE)
        body = {"prompt": NEIGHBOUR, "max_tokens": 1 << 19, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        with connection.getresponse() as response:
            for line in response:
                if line.startswith(b"data: {"):
                    self.texts.append(json.loads(line[6:])["choices"][0]["text"])
        connection.close()
        self.texts.append("[the end]")


@pytest.fixture(scope="module")
def served(tokenizer: Tokenizer) -> Iterator[Served]:
    with Served(tokenizer) as served:
        yield served
    # What the fuzzing beside it must not have touched.
    *texts, end = served.texts
    text = "".join(texts)
    assert end == "[the end]"
    assert len(texts) > 10
    assert text == ("the sea " * len(text))[: len(text)]
    assert served.faults == []
    assert served.frontend.client.num_requests == 0


@settings(SETTINGS, max_examples=cases(150))
@given(hostile.mutated_json())
def test_mutated_json_is_answered(served: Served, case: Case) -> None:
    hostile.check(case, hostile.exchange(served.frontend.address, case))


@settings(SETTINGS, max_examples=cases(60))
@given(hostile.mutated_bytes())
def test_mutated_bytes_are_answered(served: Served, case: Case) -> None:
    hostile.check(case, hostile.exchange(served.frontend.address, case))


@settings(SETTINGS, max_examples=cases(120))
@given(hostile.broken_http())
def test_broken_http_ends_its_own_connection_only(served: Served, case: Case) -> None:
    hostile.check(case, hostile.exchange(served.frontend.address, case))


@settings(SETTINGS, max_examples=cases(20))
@given(st.lists(hostile.CASES, min_size=2, max_size=8))
def test_clients_that_leave_are_forgotten(served: Served, cases: list[Case]) -> None:
    connections = [hostile.begin(served.frontend.address, case) for case in cases]
    for connection in connections:
        connection.close()
    health = Case([b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"], True)
    assert hostile.check(health, hostile.exchange(served.frontend.address, health)) == 200
