"""A server that starts late is waited for."""

import asyncio

import pytest

from pyllm.bench.endpoint import Endpoint, find_model, server_figures, wait_until_ready
from pyllm.errors import PyllmError
from tests.bench.scripted_server import scripted_server


async def test_a_server_that_starts_late_is_waited_for() -> None:
    async with scripted_server() as server:
        there = Endpoint(server.address)
    waiting = asyncio.create_task(wait_until_ready(there, 60))
    await asyncio.sleep(0)
    assert not waiting.done()
    async with scripted_server(port=int(there.base_url.rpartition(":")[2])):
        await waiting
        assert (await find_model(there)).model == "scripted"


async def test_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted_server() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.address)
        with pytest.raises(PyllmError, match=r"cannot reach http://nowhere\.invalid"):
            await find_model(Endpoint("http://nowhere.invalid"))
        assert proxy.connections == 0


async def test_waiting_ends_without_a_server() -> None:
    await wait_until_ready(Endpoint("http://127.0.0.1:1"), 0.01)


def test_answers_of_one_token_are_no_part_of_the_servers_mean_time_per_token() -> None:
    before = {("tpot", "sum"): 1.0, ("tpot", "count"): 10.0, ("ttft", "sum"): 1.0, ("ttft", "count"): 10.0}
    after = {("tpot", "sum"): 1.2, ("tpot", "count"): 14.0, ("ttft", "sum"): 1.2, ("ttft", "count"): 14.0}
    figures = server_figures(before, after, num_single=2)
    assert figures == pytest.approx({"server_mean_tpot_ms": 100.0, "server_mean_ttft_ms": 50.0})
    assert "server_mean_tpot_ms" not in server_figures(before, after, num_single=4)
