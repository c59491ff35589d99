"""Pauses over HTTP, as on vLLM's server, for admins."""

import pytest

from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Call, Heartbeat
from tests.frontend.admin.test_routes import ADMIN, BOTH, USER, bearer
from tests.frontend.serving import answering, in_process


@pytest.mark.parametrize(
    ("query", "arguments"),
    [
        ("", ("abort", True)),
        ("?mode=keep", ("keep", True)),
        ("?mode=wait&clear_cache=false", ("wait", False)),
        ("?wait_for_inflight_requests=true", ("wait", True)),
    ],
)
async def test_a_pause_goes_to_the_core_as_it_was_asked_for(
    tokenizer: Tokenizer, query: str, arguments: tuple[str, bool]
) -> None:
    core = answering(tokenizer, "ok")
    core.replies = {"pause": None, "resume": None, "is_paused": True}
    async with in_process(core, tokenizer, keys=BOTH) as frontend:
        http, admin = frontend.http, bearer(ADMIN)
        paused = await http.post(f"/pause{query}", headers=admin)
        assert (paused.status_code, paused.json()) == (200, {"status": "paused"})
        assert (await http.get("/is_paused", headers=admin)).json() == {"is_paused": True}
        assert (await http.post("/resume", headers=admin)).json() == {"status": "resumed"}
    calls = [(call.method, tuple(call.args)) for call in core.sent(Call)]
    assert calls == [("pause", arguments), ("is_paused", ()), ("resume", ())]


async def test_only_admins_may_and_a_wrong_mode_is_refused(tokenizer: Tokenizer) -> None:
    core = answering(tokenizer, "ok")
    async with in_process(core, tokenizer, keys=BOTH) as frontend:
        for method, path in (("POST", "/pause"), ("POST", "/resume"), ("GET", "/is_paused")):
            refused = await frontend.http.request(method, path, headers=bearer(USER))
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
        wrong = await frontend.http.post("/pause?mode=freeze", headers=bearer(ADMIN))
        assert wrong.status_code == 400
        assert wrong.json()["error"]["param"] == "mode"
    assert core.sent(Call) == []


async def test_health_says_that_the_engine_is_paused(tokenizer: Tokenizer) -> None:
    core = answering(tokenizer, "ok")
    async with in_process(core, tokenizer) as frontend:
        frontend.core.say(Heartbeat("paused", -1, "until it is resumed"))
        answer = await frontend.http.get("/health/ready")
        assert answer.status_code == 503
        assert (answer.json()["status"], answer.json()["reason"]) == ("paused", "until it is resumed")
        assert (await frontend.http.get("/health/live")).json()["status"] == "live"
