"""How a core is started: what it asks its ranks, and what it makes of their answers."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.engine.step import core_config
from pyllm._rust import Scheduler, SchedulerError
from pyllm.config.kv_transfer_settings import KVTransferConfig, KVTransferSettings
from pyllm.config.option_reading import config_part
from pyllm.config.process_config import CoreConfig
from pyllm.core.composition import CoreSetup, compose
from pyllm.core.replay import replay_file
from pyllm.core.startup import start
from pyllm.errors import ConfigError
from pyllm.wire.plan_layout import PLAN_SECTIONS
from tests.core.counting_executor import CountingExecutor

SECTION_NAMES = [name for name, _ in PLAN_SECTIONS]


class UnequalRanks(CountingExecutor):
    """Two ranks that differ in room and speed, and keep what they were asked."""

    def __init__(self, **answers: list[Any]) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []
        self._answers: dict[str, list[Any]] = {"num_blocks": [64, 48], "num_host_blocks": [9, 8]}
        self._answers |= {"swap_seconds": [0.25, 0.5], "token_seconds": [0.75, 0.5]} | answers

    async def collective(self, method: str, *args: Any) -> list[Any]:
        self.calls.append((method, *args))
        return self._answers.get(method) or 2 * await super().collective(method, *args)


async def test_every_rank_gets_what_the_smallest_has_room_for(tmp_path: Path) -> None:
    ranks = UnequalRanks()
    setup = await start(core_config(str(tmp_path), ranks=2), ranks)
    assert ("allocate", 48, 8, 0, 0) in ranks.calls
    assert (setup.scheduler.stats()["num_blocks"], setup.ready.model.num_blocks) == (48, 48)


async def test_the_number_of_blocks_may_be_given(tmp_path: Path) -> None:
    ranks = UnequalRanks()
    config = core_config(str(tmp_path), ranks=2)
    cache = msgspec.structs.replace(config.engine.cache, num_gpu_blocks_override=33)
    engine = msgspec.structs.replace(config.engine, cache=cache)
    scheduler = (await start(msgspec.structs.replace(config, engine=engine), ranks)).scheduler
    assert ("allocate", 33, 8, 0, 0) in ranks.calls
    assert scheduler.stats()["num_blocks"] == 33


async def test_swaps_and_tokens_are_timed_once_there_is_a_cache(tmp_path: Path) -> None:
    ranks = UnequalRanks()
    parts = await start(core_config(str(tmp_path), ranks=2), ranks)
    methods = [method for method, *_ in ranks.calls]
    assert methods.index("allocate") < min(methods.index("swap_seconds"), methods.index("token_seconds"))
    assert parts.token_seconds == 0.75, "the slowest rank's"


async def test_the_fingerprint_is_of_the_description_too(tmp_path: Path) -> None:
    config = core_config(str(tmp_path), ranks=2)
    spec = msgspec.structs.replace(config.checkpoint.spec, hidden_size=config.checkpoint.spec.hidden_size + 1)
    other = msgspec.structs.replace(config, checkpoint=msgspec.structs.replace(config.checkpoint, spec=spec))
    found = [(await start(each, UnequalRanks())).ready.fingerprint for each in (config, config, other)]
    assert (found[0] == found[1], found[0] == found[2]) == (True, False)


async def test_a_cache_without_room_for_one_block_is_a_configuration_error(tmp_path: Path) -> None:
    ranks = UnequalRanks(num_blocks=[64, 0])
    with pytest.raises(ConfigError, match="no room for one block of 16 tokens: raise kv_cache_memory_bytes"):
        await start(core_config(str(tmp_path), ranks=2), ranks)
    assert [call for call in ranks.calls if call[0] == "allocate"] == []


async def started(folder: Path, executor: CountingExecutor, **options: Any) -> tuple[CoreConfig, CoreSetup]:
    """A configuration with some options changed, and what it starts with."""
    config = core_config(str(folder))
    engine = config.engine
    parts = {}
    for name in ("model", "cache", "scheduler", "sparse", "kv_transfer"):
        part = getattr(engine, name)
        values = msgspec.structs.asdict(part)
        parts[name] = config_part(type(part), values | {key: options[key] for key in options.keys() & values.keys()})
    config = msgspec.structs.replace(config, engine=msgspec.structs.replace(engine, **parts))
    return config, await start(config, executor)


async def test_sparse_attention_is_in_the_fingerprint_and_keeps_outputs_apart(tmp_path: Path) -> None:
    """A stream never goes on in a core that attends to other blocks, nor does a prompt find blocks of an output."""
    options: list[dict[str, Any]] = [
        {},
        {"sparse_attention": "quest"},
        {"sparse_attention": "mean"},
        {"sparse_attention": "quest", "sparse_attention_top_k": 9},
        {"sparse_attention": "quest", "sparse_attention_dense_layers": 3},
    ]
    fingerprints = set()
    for number, chosen in enumerate(options):
        _, parts = await started(tmp_path / str(number), CountingExecutor(), **chosen)
        fingerprints.add(parts.ready.fingerprint)
        prompt = np.arange(16, dtype=np.int32)
        parts.scheduler.add(0, 1, prompt.tobytes(), seed=0, max_tokens=20)
        run_to_the_end(parts.scheduler)
        # Its output is in the next prompt, which finds the first block, and the second one of a dense output.
        parts.scheduler.add(0, 2, np.append(prompt, [5] * 20).astype(np.int32).tobytes(), seed=0, max_tokens=1)
        run_to_the_end(parts.scheduler)
        assert parts.scheduler.stats()["prefix_hits"] == (16 if chosen else 32)
    assert len(fingerprints) == len(options)


def run_to_the_end(scheduler: Scheduler) -> None:
    while (plan := scheduler.schedule(0.0)) is not None:
        num_sampled = plan.counts[SECTION_NAMES.index("uniforms")]
        starts = np.arange(plan.num_rows + 1, dtype=np.int32) if num_sampled else np.zeros(plan.num_rows + 1, np.int32)
        scheduler.commit(plan.step, starts.tobytes(), np.full(num_sampled, 5, np.int32).tobytes())


async def test_more_pins_than_blocks_are_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_pinned_blocks must be from 0 to 63, not 64"):
        await started(tmp_path, CountingExecutor(), max_pinned_blocks=64)


async def test_an_unknown_policy_is_told_of_before_the_ranks_start(tmp_path: Path) -> None:
    class Unstartable(CountingExecutor):
        async def start(self) -> None:
            raise AssertionError

    with pytest.raises(ConfigError, match="there is no policy 'lifo'"):
        await started(tmp_path, Unstartable(), scheduling_policy="lifo")


async def test_every_setting_reaches_the_scheduler(tmp_path: Path) -> None:
    executor = CountingExecutor()
    _, setup = await started(
        tmp_path,
        executor,
        max_pinned_blocks=3,
        enable_kv_cache_events=True,
        scheduling_policy="fair",
        tenant_weights={"acme": 2},
        watermark=0.5,
    )
    scheduler, ready = setup.scheduler, setup.ready
    assert setup.policy is None
    with pytest.raises(SchedulerError, match="max_pinned_blocks 3"):
        scheduler.pin(1, bytes(4 * 16 * 4))
    scheduler.reset_prefix_cache()
    incarnation, first, events = scheduler.events(0, 9)
    assert (incarnation, first, len(events)) == (ready.epoch, 0, 1)
    for tenant in ("acme", "other"):
        scheduler.add(0, len(tenant), bytes(4 * 10), seed=0, max_tokens=9, tenant=tenant)
    plan = scheduler.schedule(0.0)
    assert {tenant: service for tenant, service, _ in scheduler.tenants()} == {"acme": 5, "other": 10}
    assert plan.num_rows == 2


async def test_there_are_no_more_log_probabilities_than_tokens(tmp_path: Path) -> None:
    config, parts = await started(tmp_path, CountingExecutor(), max_logprobs=1 << 16)
    assert parts.ready.model.max_logprobs == config.checkpoint.spec.vocab_size < 1 << 16
    _, few = await started(tmp_path, CountingExecutor(), max_logprobs=5)
    assert few.ready.model.max_logprobs == 5


@pytest.mark.parametrize(("role", "saves"), [("kv_both", True), ("kv_producer", True), ("kv_consumer", False)])
async def test_clients_know_whether_blocks_are_saved(tmp_path: Path, role: str, saves: bool) -> None:
    store = {"store": "tests.kv_transfer.dict_store:open_dict", "store_options": {"name": "told"}}
    transfer = {"kv_connector": "StoreConnector", "kv_role": role, "kv_connector_extra_config": store}
    ranks = UnequalRanks(register_kv_caches=[None])
    _, parts = await started(tmp_path / "with", ranks, kv_transfer_config=transfer)
    assert parts.connector is not None
    parts.connector.shutdown()
    _, without = await started(tmp_path / "without", CountingExecutor())
    assert (parts.ready.model.saves_kv_blocks, without.ready.model.saves_kv_blocks) == (saves, False)


async def test_a_successor_goes_on_without_a_store_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("no folder any more")
    executor = CountingExecutor()
    config, _ = await started(tmp_path, executor)
    transfer = KVTransferSettings(kv_transfer_config=KVTransferConfig(kv_connector="StoreConnector"))
    cache = msgspec.structs.replace(config.engine.cache, kv_cache_dir=str(tmp_path / "store"))
    engine = msgspec.structs.replace(config.engine, cache=cache, kv_transfer=transfer)
    config = msgspec.structs.replace(config, engine=engine)
    with pytest.raises(ConfigError, match="store of the KV store cannot be used"):
        await start(config, executor)
    config = msgspec.structs.replace(config, is_successor=True)
    parts = await start(config, executor)
    assert parts.connector is None
    core = compose(parts, Nobody())
    parts.scheduler.add(0, 1, bytes(4 * 40), seed=0, max_tokens=2)
    while await core.step():
        pass
    stats = parts.scheduler.stats()
    assert (stats["num_cached_blocks"] > 0, stats["num_saving_blocks"], stats["num_used_blocks"]) == (True, 0, 0)
    core.close()


async def test_a_recording_is_begun_before_anything_happens(tmp_path: Path) -> None:
    executor, path = CountingExecutor(), tmp_path / "recording"
    _, parts = await started(tmp_path, executor, scheduler_recording=str(path))
    core = compose(parts, Nobody())
    parts.scheduler.add(0, 1, bytes(4), seed=0, max_tokens=2)
    while await core.step():
        pass
    core.close()
    assert replay_file(path)["stats"] == parts.scheduler.stats()
    with pytest.raises(ConfigError, match="exists and is not overwritten"):
        compose(parts, Nobody())


class Nobody:
    """A sender without a peer."""

    def send(self, message: object, *frames: object, identity: bytes = b"") -> bool:
        del message, frames, identity
        return True

    def close(self, linger: float = 0.0) -> None:
        """Nothing is open."""
