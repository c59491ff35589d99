"""What probes hear, and how: by GET or HEAD."""

import pytest

from pyllm.frontend.tokenizer import Tokenizer
from tests.frontend.serving import answering, behind_uvicorn


async def test_ready_says_why_it_is_not_and_live_stays(tokenizer: Tokenizer) -> None:
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer) as frontend:
        http = frontend.http
        ready = await http.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (200, "ready")
        frontend.core.on_disconnect()
        gone = await http.get("/health/ready")
        assert (gone.status_code, gone.json()["reason"]) == (503, "the engine is not there")
        frontend.state.draining = True
        draining = await http.get("/health/ready")
        assert (draining.status_code, draining.json()["reason"]) == (503, "the server is shutting down")
        live = await http.get("/health/live")
        assert (live.status_code, live.json()["status"]) == (200, "live")
        assert (await http.get("/health")).status_code == 503


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/version"])
async def test_head_is_get_without_a_body(tokenizer: Tokenizer, path: str) -> None:
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer) as frontend:
        response = await frontend.http.head(path)
        assert (response.status_code, response.content) == (200, b"")
        again = await frontend.http.get(path)  # on the same connection
        assert again.headers["content-length"] == response.headers["content-length"]
