"""Who may use the routes of admins, and what they show."""

import hashlib
import os
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyllm.client.reports import RequestReport
from pyllm.config.api_keys import ApiKey, KeyRing, Role, new_key
from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Call, Submit
from tests.frontend.serving import answering, in_process

USER, ADMIN = new_key("user")[0], new_key("admin")[0]
LOCAL = {"host": "127.0.0.1:8000"}  # httpx's transport names 127.0.0.1 as the client

REPORT = RequestReport(
    client=1,
    request=2,
    name="cmpl-7",
    tenant="acme",
    priority=0,
    num_samples=1,
    num_prompt_tokens=5,
    num_output_tokens=3,
    num_cached_tokens=0,
    num_blocks=1,
    num_preemptions=0,
    age=1.5,
    scheduled_age=1.0,
    ended_age=0.5,
    finish="stop",
    samples=[],
)
REPLIES = {
    "requests": [msgspec.to_builtins(REPORT)],
    "block_owners": {"tenants": {"acme": 8}, "pinned": 0, "in_transit": 0, "free": 24},
    "tenants": [("acme", 4, 0)],
    "decisions": [],
    "reconfigure": {"watermark": 0.5},
}
ROUTES = ("requests", "requests/cmpl-7", "blocks", "processes", "crashes", "tenants", "decisions", "config", "cores")


def ring(*entries: tuple[str, Role]) -> KeyRing:
    return KeyRing([
        ApiKey(name=role, sha256=hashlib.sha256(key.encode()).hexdigest(), role=role) for key, role in entries
    ])  # fmt: skip


BOTH = ring((USER, "user"), (ADMIN, "admin"))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("route", ROUTES)
async def test_only_admins_may(tokenizer: Tokenizer, route: str) -> None:
    core = answering(tokenizer, "ok")
    core.replies = dict(REPLIES)
    async with in_process(core, tokenizer, keys=BOTH) as frontend:
        get = frontend.http.get
        assert (await get(f"/admin/{route}")).status_code == 401
        refused = await get(f"/admin/{route}", headers=bearer(USER))
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
        assert "role admin" in refused.json()["error"]["message"]
        assert core.sent(Call) == []
        assert (await get(f"/admin/{route}", headers=bearer(ADMIN))).status_code == 200
        assert (
            await frontend.http.post("/v1/completions", json={"prompt": "x"}, headers=bearer(ADMIN))
        ).status_code == 200


@pytest.mark.parametrize(("keys", "headers"), [(KeyRing(), {}), (ring((USER, "user")), bearer(USER))])
async def test_without_an_admins_key_they_are_closed(
    tokenizer: Tokenizer, keys: KeyRing, headers: dict[str, str]
) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer, keys=keys) as frontend:
        refused = await frontend.http.get("/admin/requests", headers={**headers, **LOCAL})
    assert refused.status_code == 403
    assert "--admin-on-loopback" in refused.json()["error"]["message"]


@pytest.mark.parametrize("keys", [KeyRing(), ring((USER, "user"))])
@pytest.mark.parametrize(
    ("headers", "is_open"),
    [
        (LOCAL, True),
        ({"host": "evil.com"}, False),
        ({**LOCAL, "x-forwarded-for": "10.0.0.1"}, False),
        ({**LOCAL, "x-real-ip": "10.0.0.1"}, False),
        ({**LOCAL, "origin": "https://evil.com"}, False),
    ],
)
async def test_they_may_be_open_to_this_machine(
    tokenizer: Tokenizer, keys: KeyRing, headers: dict[str, str], is_open: bool
) -> None:
    core = answering(tokenizer, "ok")
    core.replies = dict(REPLIES)
    server = ServerConfig(admin_on_loopback=True)
    async with in_process(core, tokenizer, keys=keys, server=server) as frontend:
        response = await frontend.http.get("/admin/requests", headers=headers)
        assert (response.status_code == 200) is is_open
        # The other routes want a key all the same.
        version = await frontend.http.get("/version", headers=headers)
        assert version.status_code == (401 if keys else 200)


async def test_pages_of_other_sites_cannot_start_anything(tokenizer: Tokenizer) -> None:
    core = answering(tokenizer, "ok")
    async with in_process(core, tokenizer) as frontend:
        body = b'{"prompt": "x"}'  # without a content type, so a browser asks for no leave
        refused = await frontend.http.post("/v1/completions", content=body, headers={"origin": "https://evil.com"})
        assert refused.status_code == 403
        assert core.sent(Submit) == []
        assert (await frontend.http.post("/v1/completions", content=body, headers=LOCAL)).status_code == 200


async def test_what_they_show(tokenizer: Tokenizer) -> None:
    core = answering(tokenizer, "ok")
    core.replies = dict(REPLIES)
    async with in_process(core, tokenizer, keys=BOTH) as frontend:

        async def show(route: str) -> Any:
            return (await frontend.http.get(f"/admin/{route}", headers=bearer(ADMIN))).json()

        (listed,) = (await show("requests?limit=7"))["data"]
        assert (listed["name"], listed["finish"], listed["age"]) == ("cmpl-7", "stop", 1.5)
        assert core.sent(Call)[-1].args == (7, None)
        assert (await show("requests/cmpl-7"))["data"] == [listed]
        assert core.sent(Call)[-1].args == (2000, "cmpl-7")
        core.replies = {**REPLIES, "requests": []}
        assert (await show("requests/cmpl-8"))["error"]["code"] == "request_not_found"
        blocks = await show("blocks")
        assert (blocks["num_blocks"], blocks["owners"]["tenants"], blocks["prefix_hits"]) == (32, {"acme": 8}, 40)
        processes = {process["pid"]: process for process in (await show("processes"))["processes"]}
        assert processes[os.getpid()]["device_bytes"] is None
        assert processes[os.getpid()]["num_restarts"] == 0
        assert (await show("crashes"))["data"] == []
        assert (await show("tenants"))["data"] == [["acme", 4, 0]]
        assert (await show("decisions"))["data"] == []
        assert (await show("requests?limit=0"))["error"]["type"] == "invalid_request_error"
        (of_list,) = (await show("cores"))["data"]
        assert (of_list["index"], of_list["ready"], of_list["is_leaving"]) == (0, True, False)
        for route in ("requests", "blocks", "tenants", "decisions"):
            assert (await show(f"{route}?core=0")) == (await show(route))
            assert "there is no core 7" in (await show(f"{route}?core=7"))["error"]["message"]


async def test_settings_change_by_their_names(tokenizer: Tokenizer) -> None:
    core = answering(tokenizer, "ok")
    core.replies = dict(REPLIES)
    async with in_process(core, tokenizer, keys=BOTH) as frontend:
        changed = await frontend.http.patch("/admin/config", json={"watermark": 0.5}, headers=bearer(ADMIN))
        assert (changed.status_code, changed.json()) == (200, {"watermark": 0.5})
        assert core.sent(Call)[-1].args == ({"watermark": 0.5},)
        del core.replies["reconfigure"]
        refused = await frontend.http.patch("/admin/config", json={"self": 1}, headers=bearer(ADMIN))
        assert refused.status_code == 400


async def test_a_users_key_does_not_close_what_is_open_to_this_machine(tokenizer: Tokenizer) -> None:
    core = answering(tokenizer, "ok")
    core.replies = dict(REPLIES)
    server = ServerConfig(admin_on_loopback=True)
    async with in_process(core, tokenizer, keys=ring((USER, "user")), server=server) as frontend:
        assert (await frontend.http.get("/admin/config", headers={**LOCAL, **bearer(USER)})).status_code == 200
        wrong = await frontend.http.get("/admin/config", headers={**LOCAL, **bearer("sk-wrong")})
        assert wrong.status_code == 401


@pytest.mark.parametrize("limit", ["-1", "0", "abc", "100000"])
async def test_a_wrong_query_is_named(tokenizer: Tokenizer, limit: str) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer, keys=BOTH) as frontend:
        refused = await frontend.http.get(f"/admin/requests?limit={limit}", headers=bearer(ADMIN))
    assert refused.status_code == 400
    assert "limit" in refused.json()["error"]["message"]
    assert refused.json()["error"]["param"] == "limit"


async def test_metrics_are_sums_over_all_users_and_names_that_requests_chose_are_for_admins(
    tokenizer: Tokenizer,
) -> None:
    core = answering(tokenizer, "ok")
    async with in_process(core, tokenizer, keys=BOTH) as frontend:
        body = {"prompt": "x", "my_secret_field": 1, "user": "a person"}
        assert (await frontend.http.post("/v1/completions", json=body, headers=bearer(ADMIN))).status_code == 200
        shown = {
            key: list(text_string_to_metric_families((await frontend.http.get("/metrics", headers=bearer(key))).text))
            for key in (USER, ADMIN)
        }
    labels = {
        key: {label for family in families for sample in family.samples for label in sample.labels}
        for key, families in shown.items()
    }
    # None of them tells tenants or requests apart. A label that does is for admins alone.
    configuration = {"block_size", "num_gpu_blocks", "num_cpu_blocks", "cache_dtype"}
    sums = {
        "model_name",
        "engine",
        "le",
        "reason",
        "finished_reason",
        "kind",
        "tier",
        "process",
        "method",
        "status",
        "handler",
        "source",
        "sleep_state",
    }
    assert labels == {USER: sums | configuration, ADMIN: sums | configuration | {"field"}}
    names = {sample.labels["field"] for family in shown[ADMIN] for sample in family.samples if "field" in sample.labels}
    assert "my_secret_field" in names
    assert [family.name for family in shown[USER]] == [family.name for family in shown[ADMIN]]


async def test_the_prefix_cache_is_reset_by_admins(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer, keys=BOTH) as frontend:
        frontend.core.replies["reset_prefix_cache"] = None
        refused = await frontend.http.post("/reset_prefix_cache", headers=bearer(USER))
        assert "reset_prefix_cache" not in [call.method for call in frontend.core.sent(Call)]
        done = await frontend.http.post("/reset_prefix_cache", headers=bearer(ADMIN))
        running = await frontend.http.post("/reset_prefix_cache?reset_running_requests=true", headers=bearer(ADMIN))
        calls = [call.method for call in frontend.core.sent(Call)]
    assert (running.status_code, "pause_generation" in running.text) == (400, True)
    assert (refused.status_code, done.status_code, done.json()) == (403, 200, {"success": True})
    assert "reset_prefix_cache" in calls
