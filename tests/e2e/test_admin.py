"""What an admin sets and sees outlives the processes that it was set in: real ones, killed one after the other."""

import contextlib
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyllm.config.api_keys import new_key
from tests.e2e.server import Server, until
from tests.e2e.titles import API, CORE, WORKER
from tests.tiers import full

SECOND_API = "pyllm::api-1"
CHANGES = {"log_level": "ERROR", "watermark": 0.25}


def test_what_was_set_and_what_ended_outlives_the_core_and_restarts_are_told(model: str) -> None:
    with Server(model, "--api-server-count", "2", "--admin-on-loopback") as server:
        with server.http() as http:

            def show(path: str) -> Any:
                try:
                    response = http.get(f"/admin/{path}")
                except httpx.TransportError:  # It went to a process that was just killed.
                    return {}
                return response.json() if response.status_code == 200 else {}

            def process(title: str) -> dict[str, Any]:
                return next((each for each in show("processes").get("processes", ()) if each["name"] == title), {})

            def is_restarted(title: str, reason: str, number: int = 1) -> bool:
                shown = process(title)
                return shown.get("num_restarts") == number and reason in shown["restart_reason"]

            def kill(title: str) -> None:
                server.titled(title).kill()

            assert process(CORE)["restart_reason"] is None
            changed = http.patch("/admin/config", json=CHANGES).json()
            assert changed.items() >= CHANGES.items()
            body = {"prompt": "The sea", "max_tokens": 2, "ignore_eos": True}
            request = http.post("/v1/completions", json=body, headers={"x-request-id": "before"})
            assert request.status_code == 200
            kill(WORKER)
            until(lambda: is_restarted(WORKER, "was killed by SIGKILL"), "the worker's successor")
            kill(CORE)
            until(lambda: is_restarted(CORE, "core 0 was killed by SIGKILL"), "the core's successor")
            until(lambda: show("config").items() >= CHANGES.items(), "the next core to have the settings")
            assert show("config") == changed
            # Its worker went with it; the one before is not forgotten.
            until(lambda: is_restarted(WORKER, "core 0 was killed by SIGKILL", 2), "the worker's count")
            (ended,) = show("requests/before")["data"]
            assert (ended["finish"], ended["num_output_tokens"]) == ("length", 2)
            kill(SECOND_API)
            until(lambda: is_restarted(SECOND_API, "API process 1 was killed by SIGKILL"), "an API process")
            assert process(API)["num_restarts"] == 0
        server.tree = server.processes()
    assert server.process.returncode == 0
    assert server.orphans() == []
    # All keep to the level, those included that were started later.
    _, _, later = server.log.partition(" ERROR ")
    assert "API process 1 was killed by SIGKILL" in later
    assert " INFO " not in later
    assert " WARNING " not in later


@pytest.mark.parametrize("way", ["signal", full("route")])
def test_every_api_process_reads_keys_again_and_so_does_one_that_takes_anothers_place(
    model: str, way: str, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    admin, admin_entry = new_key("boss", "admin")
    old, old_entry = new_key("old")
    new, new_entry = new_key("new")

    def write(*entries: str) -> None:
        path.write_text(f'{{"keys": [{", ".join(entries)}]}}')
        path.chmod(0o600)

    def statuses(key: str) -> set[int]:
        """Of several connections: of both processes, as far as chance wants it."""
        headers = {"Authorization": f"Bearer {key}"}
        return {httpx.get(f"{server.address}/v1/models", headers=headers).status_code for _ in range(12)}

    write(admin_entry, old_entry)
    with Server(model, "--api-server-count", "2", "--api-key-file", str(path)) as server:
        assert statuses(old) == {200}
        write(admin_entry, new_entry)
        if way == "route":
            httpx.post(
                f"{server.address}/admin/reload", headers={"Authorization": f"Bearer {admin}"}
            ).raise_for_status()
        else:
            server.process.send_signal(signal.SIGUSR1)
        until(lambda: statuses(old) == {401} and statuses(new) == {200}, "both processes to have read the keys")
        path.write_text("{")  # Half an edit: what is in force stays so.
        server.titled("pyllm::api-0").kill()
        server.titled("pyllm::api-1").kill()
        until(lambda: is_up(f"{server.address}/health/live"), "another API process")
        assert (statuses(old), statuses(new)) == ({401}, {200})
        server.tree = server.processes()


def is_up(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url).status_code == 200
    return False
