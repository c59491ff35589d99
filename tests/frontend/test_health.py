"""What probes hear, and how: by GET or HEAD."""

import pytest

from pyllm.errors import GivenUpError
from pyllm.frontend.shared.local_state import LocalState
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Heartbeat
from tests.frontend.serving import Frontend, answering, behind_uvicorn


async def ready(frontend: Frontend) -> tuple[int, str | None]:
    answer = await frontend.http.get("/health/ready")
    assert (await frontend.http.get("/health")).status_code == answer.status_code
    return answer.status_code, answer.json().get("reason")


async def test_ready_says_why_it_is_not_and_live_stays(tokenizer: Tokenizer) -> None:
    silence = 0.0
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer, parent_silence=lambda: silence) as frontend:
        assert await ready(frontend) == (200, None)
        local = frontend.state.shared
        assert isinstance(local, LocalState)
        local.trouble = "the shared state is not there"
        assert await ready(frontend) == (503, "the shared state is not there")
        local.trouble = ""
        silence = 2.6
        assert await ready(frontend) == (503, "the server's supervisor has given no sign of life for 2.6 s")
        frontend.core.answers_hello = False
        frontend.core.on_disconnect()
        status, reason = await ready(frontend)
        assert status == 503
        assert str(reason).startswith("the connection to the engine core was lost")
        frontend.client.give_up(GivenUpError("core 0 died 10 times"))
        assert await ready(frontend) == (503, "core 0 died 10 times")
        frontend.state.draining = True
        assert await ready(frontend) == (503, "the server is shutting down")
        live = await frontend.http.get("/health/live")
        assert (live.status_code, live.json()["status"]) == (200, "live")


@pytest.mark.parametrize("stage", ["ready", "recovering", "stalled", "draining"])
async def test_what_a_core_says_of_itself_is_heard(tokenizer: Tokenizer, stage: str) -> None:
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer) as frontend:
        frontend.core.say(Heartbeat(stage, 3, "because"))
        assert await ready(frontend) == ((200, None) if stage == "ready" else (503, "because"))
        live = await frontend.http.get("/health/live")
        stalled = stage == "stalled"
        assert (live.status_code, live.json()["status"]) == (200, "stalled" if stalled else "live")
        assert live.json().get("reason") == ("because" if stalled else None)
        frontend.core.say(Heartbeat("ready", 4))
        assert await ready(frontend) == (200, None)


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/version"])
async def test_head_is_get_without_a_body(tokenizer: Tokenizer, path: str) -> None:
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer) as frontend:
        response = await frontend.http.head(path)
        assert (response.status_code, response.content) == (200, b"")
        again = await frontend.http.get(path)  # on the same connection
        assert again.headers["content-length"] == response.headers["content-length"]
