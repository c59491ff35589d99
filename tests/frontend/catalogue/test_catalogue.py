"""Which models are loaded when: on demand, within the budget, pinned, for a time, and again after they have left."""

import asyncio
import random
from pathlib import Path

import pytest

from pyllm.config.api_keys import Allowance
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import DeadlineError, EngineDeadError
from pyllm.frontend.catalogue.catalogue import RETRY, Catalogue, ModelFailedError
from pyllm.frontend.http.failure import QueueFullError, UnknownModelError
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.frontend.catalogue.fake_supervisor import FakeSupervisor, Served
from tests.waiting import until

SIZES = {"a": 40, "b": 50, "c": 60, "d": 30, "e": 45}


def asked(tenant: str = "", role: str = "user") -> RequestContext:
    return RequestContext("id", tenant=tenant, role=role, allowance=Allowance())  # type: ignore[arg-type]


async def use(catalogue: Catalogue, name: str, patience: float | None = None) -> str:
    """The name by which the model of one request answers."""
    async with catalogue.use(catalogue.models[name], patience) as service:
        await asyncio.sleep(0)
        return service.state.model_name


async def test_a_model_is_loaded_by_its_first_request_and_stays(tokenizer: Tokenizer, tmp_path: Path) -> None:
    served = await Served.start(tmp_path, tokenizer, FakeSupervisor(SIZES, 110))
    assert served.model("a").stage == "unloaded"
    assert await use(served.catalogue, "a") == "a"
    assert await use(served.catalogue, "b") == "b"
    assert [each.name for each in served.supervisor.running] == ["a", "b"]
    assert served.model("a").stage == "loaded"
    assert served.model("a").num_loads == 1
    served.catalogue.close()


async def test_requests_that_wait_share_one_loading(tokenizer: Tokenizer, tmp_path: Path) -> None:
    supervisor = FakeSupervisor(SIZES, 110)
    served = await Served.start(tmp_path, tokenizer, supervisor)
    supervisor.goes_on.clear()
    waiting = [asyncio.ensure_future(use(served.catalogue, "a")) for _ in range(5)]
    await until(lambda: served.model("a").num_waiting == 5 and bool(supervisor.running))
    assert served.model("a").stage == "loading"
    supervisor.goes_on.set()
    assert await asyncio.gather(*waiting) == ["a"] * 5
    assert served.model("a").num_loads == 1
    served.catalogue.close()


async def test_the_least_recently_used_model_makes_room(tokenizer: Tokenizer, tmp_path: Path) -> None:
    now = 0.0
    served = await Served.start(tmp_path, tokenizer, FakeSupervisor(SIZES, 110), clock=lambda: now)
    for name in ("a", "b", "a", "c"):
        now += 1.0
        await use(served.catalogue, name)
    assert {name for name in SIZES if served.model(name).service} == {"a", "c"}
    assert served.supervisor.most_bytes <= 110
    served.catalogue.close()


async def test_a_busy_model_ends_its_requests_before_it_makes_room(tokenizer: Tokenizer, tmp_path: Path) -> None:
    served = await Served.start(tmp_path, tokenizer, FakeSupervisor(SIZES, 1000, max_models=1))
    catalogue = served.catalogue
    async with catalogue.use(served.model("a")):
        waiting = asyncio.ensure_future(use(catalogue, "b"))
        await until(lambda: served.model("a").is_leaving)
        again = asyncio.ensure_future(use(catalogue, "a"))  # It comes while "a" leaves, and waits for its return.
        await asyncio.sleep(0)
        assert not waiting.done()
        assert served.model("a").stage == "unloading"
    assert await waiting == "b"
    assert await again == "a"
    assert served.supervisor.most_models == 1
    catalogue.close()


async def test_a_model_stays_as_long_as_its_loading_took(tokenizer: Tokenizer, tmp_path: Path) -> None:
    now = 0.0
    supervisor = FakeSupervisor(SIZES, 1000, max_models=1)
    served = await Served.start(tmp_path, tokenizer, supervisor, clock=lambda: now)
    catalogue = served.catalogue
    supervisor.goes_on.clear()
    first = asyncio.ensure_future(catalogue.load(served.model("a")))
    await until(lambda: bool(supervisor.running))
    now = 5.0
    supervisor.goes_on.set()
    await first
    async with catalogue.use(served.model("a")):
        waiting = asyncio.ensure_future(use(catalogue, "b"))
        await until(lambda: served.model("b").news.stage == "waiting")
        now = 9.0
        catalogue.tick()
        assert not served.model("a").is_leaving
        now = 10.0
        catalogue.tick()
        assert served.model("a").is_leaving
    assert await waiting == "b"
    catalogue.close()


async def test_a_pinned_model_is_never_unloaded_for_another(tokenizer: Tokenizer, tmp_path: Path) -> None:
    served = await Served.start(tmp_path, tokenizer, FakeSupervisor(SIZES, 100), a={"pinned": True})
    catalogue = served.catalogue
    await use(catalogue, "a")
    await use(catalogue, "c")
    await use(catalogue, "b")
    assert {name for name in SIZES if served.model(name).service} == {"a", "b"}
    assert served.model("a").num_loads == 1
    served.supervisor.sizes["e"] = 61
    with pytest.raises(ModelFailedError, match="the pinned models leave too little room"):
        await use(catalogue, "e")
    assert await use(catalogue, "b") == "b"
    catalogue.close()


async def test_a_model_leaves_when_it_has_not_been_used_for_its_time(tokenizer: Tokenizer, tmp_path: Path) -> None:
    now = 0.0
    supervisor = FakeSupervisor(SIZES, 1000)
    served = await Served.start(tmp_path, tokenizer, supervisor, clock=lambda: now, a={"ttl": 60.0})
    catalogue = served.catalogue
    await use(catalogue, "a")
    await use(catalogue, "b")
    now = 59.0
    catalogue.tick()
    assert not served.model("a").is_leaving
    now = 60.0
    catalogue.tick()
    await until(lambda: served.model("a").stage == "unloaded")
    assert served.model("b").stage == "loaded"
    service = await catalogue.acquire(served.model("b"))
    catalogue.release(served.model("b"), keep=5.0)
    assert service is served.model("b").service
    now = 65.0
    catalogue.tick()
    await until(lambda: served.model("b").stage == "unloaded")
    catalogue.close()


async def test_a_model_that_cannot_start_costs_its_own_requests_only(tokenizer: Tokenizer, tmp_path: Path) -> None:
    now = 0.0
    supervisor = FakeSupervisor(SIZES, 1000)
    supervisor.broken, supervisor.missing = {"b"}, {"c"}
    served = await Served.start(tmp_path, tokenizer, supervisor, clock=lambda: now)
    catalogue = served.catalogue
    for name, text in (("b", "b does not start"), ("c", "there is no model at c.gguf")):
        waiting = [asyncio.ensure_future(use(catalogue, each)) for each in (name, "a", name)]
        failed, other, also = await asyncio.gather(*waiting, return_exceptions=True)
        assert other == "a"
        for each in (failed, also):
            assert isinstance(each, ModelFailedError)
            assert text in str(each)
        assert served.model(name).stage == "failed"
    wish = served.model("b").news.wish
    with pytest.raises(ModelFailedError):
        await use(catalogue, "b")
    assert served.model("b").news.wish == wish  # It was not tried again so soon.
    now += RETRY
    supervisor.broken = set()
    assert await use(catalogue, "b") == "b"
    assert served.model("b").reason == ""
    catalogue.close()


async def test_a_model_whose_cores_are_lost_for_good_fails_and_is_loaded_again(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    now = 0.0
    served = await Served.start(tmp_path, tokenizer, FakeSupervisor(SIZES, 1000), clock=lambda: now)
    catalogue = served.catalogue
    await use(catalogue, "a")
    served.supervisor.running[0].lose(EngineDeadError("it was lost too often"))
    await until(lambda: served.model("a").stage == "failed")
    assert served.model("a").reason == "it was lost too often"
    now = RETRY
    assert await use(catalogue, "a") == "a"
    catalogue.close()


async def test_the_next_api_process_takes_no_number_of_an_earlier_wish(tokenizer: Tokenizer, tmp_path: Path) -> None:
    now = 0.0
    supervisor = FakeSupervisor(SIZES, 1000)
    served = await Served.start(tmp_path, tokenizer, supervisor, clock=lambda: now, a={"pinned": True}, b={"ttl": 5.0})
    await use(served.catalogue, "a")
    await use(served.catalogue, "b")
    now = 5.0
    served.catalogue.tick()
    await until(lambda: served.model("b").stage == "unloaded")
    served.catalogue.close()
    following = await Served.start(tmp_path, tokenizer, supervisor, clock=lambda: now, a={"pinned": True})
    assert following.catalogue.models["a"].wish == 0
    assert await use(following.catalogue, "b") == "b"
    assert await use(following.catalogue, "a") == "a"
    assert [each.name for each in supervisor.running if each.is_running] == ["a", "b"]
    following.catalogue.close()


async def test_no_more_requests_wait_for_a_model_than_its_queue_takes(tokenizer: Tokenizer, tmp_path: Path) -> None:
    supervisor = FakeSupervisor(SIZES, 1000)
    server = ServerConfig(max_num_queued_reqs=2)
    served = await Served.start(tmp_path, tokenizer, supervisor, server=server)
    supervisor.goes_on.clear()
    waiting = [asyncio.ensure_future(use(served.catalogue, "a")) for _ in range(2)]
    await until(lambda: served.model("a").num_waiting == 2)
    with pytest.raises(QueueFullError, match="2 requests wait for the model 'a' already"):
        await use(served.catalogue, "a")
    supervisor.goes_on.set()
    assert await asyncio.gather(*waiting) == ["a", "a"]
    assert await use(served.catalogue, "a") == "a"
    served.catalogue.close()


async def test_requests_wait_no_longer_than_they_may(tokenizer: Tokenizer, tmp_path: Path) -> None:
    supervisor = FakeSupervisor(SIZES, 1000)
    now = 0.0
    served = await Served.start(tmp_path, tokenizer, supervisor, clock=lambda: now)
    supervisor.goes_on.clear()
    waiting = asyncio.ensure_future(use(served.catalogue, "a", 3.0))
    await until(lambda: bool(supervisor.running))
    now = 3.0
    served.catalogue._notify()
    with pytest.raises(DeadlineError, match=r"after 3 s, before its model was loaded"):
        await waiting
    ending = asyncio.ensure_future(use(served.catalogue, "a"))
    await until(lambda: served.model("a").num_waiting == 1)
    await served.catalogue.drain(1.0)
    with pytest.raises(EngineDeadError, match="shutting down"):
        await ending
    served.catalogue.close()


async def test_nobody_makes_room_for_requests_that_have_left(tokenizer: Tokenizer, tmp_path: Path) -> None:
    served = await Served.start(tmp_path, tokenizer, FakeSupervisor(SIZES, 1000, max_models=1))
    catalogue = served.catalogue
    async with catalogue.use(served.model("a")):
        served.model("a").load_seconds = 1.0  # It may not leave yet.
        waiting = asyncio.ensure_future(use(catalogue, "b"))
        await until(lambda: served.model("b").news.stage == "waiting")
        waiting.cancel()
        await asyncio.wait({waiting})
        catalogue.tick()
        await until(lambda: served.model("b").stage == "unloaded")
        assert not served.model("a").is_leaving
    catalogue.close()


async def test_an_unloaded_model_is_gone_when_the_call_returns(tokenizer: Tokenizer, tmp_path: Path) -> None:
    served = await Served.start(tmp_path, tokenizer, FakeSupervisor(SIZES, 1000), a={"pinned": True})
    await use(served.catalogue, "a")
    await served.catalogue.unload(served.model("a"))
    assert not any(each.is_running for each in served.supervisor.running)
    assert served.model("a").stage == "unloaded"
    assert await use(served.catalogue, "a") == "a"
    served.catalogue.close()


async def test_names_are_models_aliases_and_nothing_else(tokenizer: Tokenizer, tmp_path: Path) -> None:
    served = await Served.start(
        tmp_path,
        tokenizer,
        FakeSupervisor(SIZES, 1000),
        aliases={"gpt-4o": {"b": 1.0}, "secret": {"a": 1.0}},
        a={"tenants": ("alice",)},
    )
    find = served.catalogue.find
    assert find("b", asked()).name == "b"
    assert find("gpt-4o", asked()).name == "b"
    assert find(None, asked()).name == "b"  # The first one that this tenant may use.
    assert find(None, asked("alice")).name == "a"
    assert find("a", asked("alice")).name == find("a", asked("bob", "admin")).name == "a"
    for name in ("a", "secret", "x"):
        with pytest.raises(UnknownModelError) as error:
            find(name, asked("bob"))
        assert "'a'" not in str(error.value).partition("has")[2]
    served.catalogue.close()


@pytest.mark.parametrize("seed", range(3))
async def test_no_request_fails_in_random_switches(tokenizer: Tokenizer, tmp_path: Path, seed: int) -> None:
    """Five models with room for two of them: each request gets an answer of the model that it names."""
    now = 0.0
    supervisor = FakeSupervisor(SIZES, 110, max_models=2)
    served = await Served.start(tmp_path, tokenizer, supervisor, clock=lambda: now)
    drawn = random.Random(seed)

    async def ask() -> None:
        nonlocal now
        for _ in range(40):
            name = drawn.choice(list(SIZES))
            async with served.catalogue.use(served.model(name)) as service:
                assert service.state.model_name == name
                for _ in range(drawn.randrange(20)):
                    await asyncio.sleep(0)
                now += drawn.random()
            if drawn.random() < 0.1:
                await served.catalogue.unload(served.model(drawn.choice(list(SIZES))))

    await asyncio.gather(*(ask() for _ in range(5)))
    assert supervisor.most_bytes <= 110
    assert supervisor.most_models <= 2
    assert all(
        model.num_uses == model.num_waiting == model.num_failures == 0 for model in served.catalogue.models.values()
    )
    served.catalogue.close()
    await supervisor.processes.stop(1.0)
    assert not any(each.is_running for each in supervisor.running)
    assert supervisor.room.num_bytes == 0
