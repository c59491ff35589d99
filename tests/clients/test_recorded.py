"""What programs send, as it was recorded, is answered: a regression shows without installing any of them.

`make clients` runs the programs themselves; `fixture.py` says what is left of a record. Some are written by hand after
the public sources of llama-index, DSPy, smolagents and aiperf; some for Ollama's routes after Continue's
(`core/llm/llms/Ollama.ts`) and Home Assistant's (`components/ollama/entity.py`).
"""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from pyllm.frontend.app import create_app
from tests.clients.fixture import FOLDER, Fixture
from tests.clients.script import Script
from tests.clients.scripted_model import scripted_state

ANSWER = "Hello from the script."
# The key of an answer that is not streamed, and what stands there.
OBJECTS = {
    "/v1/chat/completions": ("object", "chat.completion"),
    "/v1/completions": ("object", "text_completion"),
    "/v1/responses": ("object", "response"),
    "/v1/messages": ("type", "message"),
    "/v1/embeddings": ("object", "list"),
    "/v1/fim/completions": ("object", "chat.completion"),
}
# Routes of Ollama's that stream lines unless the body says otherwise.
LINES = frozenset({"/api/chat", "/api/generate"})
# The last event of a stream.
ENDS = {
    "/v1/chat/completions": "[DONE]",
    "/v1/completions": "[DONE]",
    "/v1/responses": "response.completed",
    "/v1/messages": "message_stop",
    "/v1/fim/completions": "[DONE]",
}
RECORDED = sorted(FOLDER.glob("*/*.json"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http() -> AsyncGenerator[httpx.AsyncClient, None]:
    """A client of the scripted model's frontend, in this process."""
    state = await scripted_state(Script(default=ANSWER))
    transport = httpx.ASGITransport(create_app(state))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client
    state.client.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_a_recorded_request_is_answered(http: httpx.AsyncClient, path: Path) -> None:
    fixture = Fixture.read(path)
    content = b"" if fixture.body is None else msgspec.json.encode(fixture.body)
    answer = await http.request(fixture.method, fixture.path, content=content, headers=fixture.headers)
    assert answer.status_code == fixture.status, answer.text
    if fixture.status != 200:
        return
    route = fixture.path.split("?")[0]
    if fixture.method == "GET":
        assert not answer.content or answer.json()
    elif route == "/v1/messages/count_tokens":
        assert answer.json()["input_tokens"] > 0
    elif route in LINES:
        last = msgspec.json.decode(answer.text.splitlines()[-1])
        assert (last["done"], bool(last["done_reason"])) == (True, True)
    elif fixture.body.get("stream"):
        assert last_event(answer.text) == ENDS[route]
    elif route in OBJECTS:
        key, value = OBJECTS[route]
        assert answer.json()[key] == value
    else:
        assert answer.json()
    if fixture.ignored is not None:
        assert ignored(answer) == sorted(fixture.ignored)


def test_every_program_of_make_clients_has_recorded_requests() -> None:
    programs = {path.stem for path in (FOLDER.parent / "programs").glob("*.txt")}
    assert programs <= {path.parent.name for path in RECORDED}


def ignored(answer: httpx.Response) -> list[str]:
    """The fields that the answer's header names."""
    return sorted(filter(None, answer.headers.get("pyllm-ignored-fields", "").split(", ")))


def last_event(text: str) -> Any:
    """The type of a stream's last event, or its text where that is no JSON."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")][-1]
    return msgspec.json.decode(data)["type"] if data.startswith("{") else data
