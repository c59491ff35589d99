import asyncio
from array import array
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyllm._rust import Plan
from pyllm.checkpoint.hub import Hub
from pyllm.checkpoint.reader import read_checkpoint, read_weights
from pyllm.checkpoint.types import Checkpoint
from pyllm.core.weight_versions import WeightsSource, kept_checkpoint, with_arrays
from pyllm.errors import ConfigError, EngineDeadError
from pyllm.wire.messages import Call, Deltas, FinishCode, Output, Rejected, Reply, Sampled, SharedArray, WeightsChanged
from pyllm.wire.supervision_messages import Kept
from tests.core.counting_executor import CountingExecutor
from tests.core.raw_engine import EPOCH, Engine
from tests.tiny_model import write_tiny_model

CONTEXT = 128


class VersionedExecutor(CountingExecutor):
    """With the second version, after token t comes t + 2. Loads in two turns; new ranks have what `use_weights` says.

    `refuses` names a method that fails, `room` the bytes that are free for a version of 100.
    """

    def __init__(self, refuses: str = "", room: int = 1000, **options: Any) -> None:
        super().__init__(**options)
        self.refuses = refuses
        self.room = room
        self.dies_of = ""
        self.calls: list[str] = []
        self.used: Checkpoint | None = None
        self._running: Checkpoint | None = None
        self._loaded: Checkpoint | None = None
        self._num_turns = 0

    def use_weights(self, checkpoint: Checkpoint) -> None:
        self.used = checkpoint

    async def restart(self) -> None:
        await super().restart()
        self._running, self._loaded = self.used, None

    async def collective(self, method: str, *args: Any) -> list[Any]:
        if not method.endswith("_weights") and method not in {"weights_room", "sleep"}:
            return await super().collective(method, *args)
        await asyncio.sleep(0)
        if method == self.dies_of:
            self.dies_of = ""
            self.die("killed")
        if self.death is not None:
            raise self.death
        self.calls.append(method)
        if method == self.refuses:
            raise EngineDeadError(f"worker 0 refused a call: {method}")
        match method:
            case "weights_room":
                return [(100, self.room)]
            case "begin_weights":
                self._loaded, self._num_turns = msgspec.msgpack.decode(args[0], type=Checkpoint), 0
            case "load_weights":
                self._num_turns += 1
                return [self._num_turns == 2]
            case "switch_weights":
                assert self._loaded is not None
                self._running, self._loaded = self._loaded, None
            case "drop_weights":
                self._loaded = None
            case "sleep":
                self.allocated = ()
        return [None]

    def sample(self, plan: Plan) -> Sampled:
        sampled = super().sample(plan)
        if self._running is None or not self._running.files[0].endswith("second/model.safetensors"):
            return sampled
        tokens = memoryview(bytearray(sampled.tokens)).cast("i")
        for index, token in enumerate(tokens):
            tokens[index] = token + 1
        for slot in self.plans[-1]["slots"]:
            self._last_token[slot] += 1
        return Sampled(sampled.step, sampled.starts, tokens.tobytes())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> WeightsSource:
    folder = tmp_path_factory.mktemp("versions")
    first = write_tiny_model(folder / "first", seed=1, max_position_embeddings=CONTEXT)
    write_tiny_model(folder / "second", seed=2, max_position_embeddings=CONTEXT)
    write_tiny_model(folder / "other", layers=3, max_position_embeddings=CONTEXT)
    return WeightsSource(read_checkpoint(first), Hub(), CONTEXT, {}, is_cpu=True)


def folder_of(source: WeightsSource) -> Path:
    return Path(source.first.files[0]).parents[1]


def engine_of(source: WeightsSource, executor: CountingExecutor | None = None, **options: Any) -> Engine:
    current = options.pop("weights", source.first)
    return Engine(executor or VersionedExecutor(), weights_source=source, weights=current, **options)


async def ask(engine: Engine, number: int, method: str, *args: Any) -> Any:
    """A call's answer, while the engine steps."""
    engine.receive(Call(EPOCH, number, method, args))

    def reply() -> Reply | None:
        return next((each for each in engine.messages(Reply) if each.id == number), None)

    async def step() -> None:
        while reply() is None:
            await engine.core.step()
            await asyncio.sleep(0)

    await asyncio.wait_for(step(), 30)
    found = reply()
    assert found is not None
    return (found.ok, found.value)


async def load_second(engine: Engine, source: WeightsSource) -> str:
    ok, version = await ask(engine, 10, "load_weights", str(folder_of(source) / "second"))
    assert ok, version
    return str(version)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("room", [1000, 10])
async def test_finish_ends_what_has_begun_with_the_weights_before(source: WeightsSource, depth: int, room: int) -> None:
    executor = VersionedExecutor(room=room)
    kept: list[Kept] = []
    engine = engine_of(source, executor, depth=depth, keep=kept.append)
    engine.submit(1, [1, 2, 3], max_tokens=30)
    await engine.core.step()
    version = await load_second(engine, source)
    assert ("load_weights" in executor.calls) is (room == 1000)  # else it is loaded in the place of the other one
    engine.receive(Call(EPOCH, 11, "switch_weights", (version, "finish")))
    await asyncio.sleep(0)
    engine.submit(2, [50], max_tokens=3)
    while len(engine.outputs()) < 2 or engine.core.stats()["num_requests"]:
        await engine.core.step()
        await asyncio.sleep(0)
    assert engine.outputs() == {
        1: ([4 + index for index in range(30)], FinishCode.LENGTH),
        2: ([52, 54, 56], FinishCode.LENGTH),
    }
    kinds = [type(message) for _, message in engine.sent if isinstance(message, Deltas | WeightsChanged)]
    assert kinds.index(WeightsChanged) > 0
    assert engine.messages(WeightsChanged) == [WeightsChanged(EPOCH, version)]
    (described,) = [each.weights for each in kept if each.weights is not None]
    checkpoint = kept_checkpoint(described)
    assert checkpoint is not None
    assert (checkpoint.version, checkpoint) == (version, executor.used)


async def test_continue_goes_on_with_the_new_weights_and_abort_ends(source: WeightsSource) -> None:
    engine = engine_of(source)
    version = await load_second(engine, source)
    engine.submit(1, [1, 2, 3], max_tokens=30)
    for _ in range(5):
        await engine.core.step()
    assert await ask(engine, 11, "switch_weights", version, "continue") == (True, None)
    await engine.run_dry()
    tokens, finish = engine.outputs()[1]
    steps = [after - before for before, after in pairwise(tokens)]
    assert (finish, sorted(steps), set(steps)) == (FinishCode.LENGTH, steps, {1, 2})

    ok, first = await ask(engine, 12, "load_weights", str(folder_of(source) / "first"))
    assert ok
    engine.submit(2, [1, 2, 3], max_tokens=30)
    await engine.core.step()
    assert await ask(engine, 13, "switch_weights", first, "abort") == (True, None)
    assert engine.outputs()[2][1] == FinishCode.ABORT


async def test_blocks_are_not_shared_between_versions(source: WeightsSource) -> None:
    engine = engine_of(source)
    engine.submit(1, list(range(12)), max_tokens=1)
    await engine.run_dry()
    version = await load_second(engine, source)
    assert await ask(engine, 11, "switch_weights", version) == (True, None)
    before = engine.core.stats()["prefix_hits"]
    engine.submit(2, list(range(12)), max_tokens=1)
    await engine.run_dry()
    assert engine.core.stats()["prefix_hits"] == before
    assert engine.scheduler.stats()["num_used_blocks"] == 0


async def test_a_request_that_began_with_other_weights_is_refused(source: WeightsSource) -> None:
    engine = engine_of(source)
    version = await load_second(engine, source)
    assert await ask(engine, 11, "switch_weights", version) == (True, None)
    output = Output(array("i", [4]).tobytes(), False)
    engine.submit(1, [3], outputs=(output,), weights_version="")
    engine.submit(2, [3], outputs=(output,), weights_version=version)
    await engine.run_dry()
    assert [(each.request, each.code) for each in engine.messages(Rejected)] == [(1, "weights")]
    assert engine.scheduler.stats()["num_requests"] == 0


@pytest.mark.parametrize("refuses", ["begin_weights", "load_weights", "switch_weights"])
async def test_ranks_that_refuse_leave_the_weights_before(source: WeightsSource, refuses: str) -> None:
    executor = VersionedExecutor(refuses)
    engine = engine_of(source, executor)
    engine.submit(1, [1, 2, 3], max_tokens=30)
    await engine.core.step()
    ok, answer = await ask(engine, 10, "load_weights", str(folder_of(source) / "second"))
    if refuses == "switch_weights":
        assert ok
        ok, answer = await ask(engine, 11, "switch_weights", answer, "continue")
        assert executor.used == source.first
    assert not ok
    assert f"the weights cannot be used: worker 0 refused a call: {refuses}" in answer
    await engine.run_dry()
    assert engine.outputs()[1] == ([4 + index for index in range(30)], FinishCode.LENGTH)
    assert engine.messages(WeightsChanged) == []


@pytest.mark.parametrize("dies_of", ["begin_weights", "load_weights", "switch_weights"])
async def test_workers_that_die_in_the_middle_leave_one_version(source: WeightsSource, dies_of: str) -> None:
    executor = VersionedExecutor()
    executor.dies_of = dies_of
    engine = engine_of(source, executor)
    engine.submit(1, [1, 2, 3], max_tokens=30)
    await engine.core.step()
    ok, answer = await ask(engine, 10, "load_weights", str(folder_of(source) / "second"))
    if dies_of == "switch_weights":
        assert await ask(engine, 11, "switch_weights", answer, "finish") == (True, None)
    else:
        assert (ok, "the workers died meanwhile" in answer) == (False, True)
    await engine.run_dry()
    engine.submit(2, [50], max_tokens=2)
    await engine.run_dry()
    assert executor.num_restarts == 1
    assert engine.outputs()[1] == ([4 + index for index in range(30)], FinishCode.LENGTH)
    assert engine.outputs()[2][0] == ([52, 54] if dies_of == "switch_weights" else [51, 52])


async def test_workers_lost_after_the_load_get_the_version_at_the_switch(source: WeightsSource) -> None:
    executor = VersionedExecutor(dies_at=[3])
    engine = engine_of(source, executor)
    version = await load_second(engine, source)
    engine.submit(1, [1, 2, 3], max_tokens=6)
    await engine.run_dry()
    assert executor.num_restarts == 1
    assert await ask(engine, 11, "switch_weights", version) == (True, None)
    engine.submit(2, [50], max_tokens=2)
    await engine.run_dry()
    assert engine.outputs()[2][0] == [52, 54]


async def test_what_cannot_be_is_refused_by_its_reason(source: WeightsSource) -> None:
    engine = engine_of(source)
    for number, (method, args, text) in enumerate(
        [
            ("load_weights", (str(folder_of(source) / "other"),), "layers is of 3, and the engine's is of 2"),
            ("load_weights", (str(folder_of(source) / "absent"),), "there is no model"),
            ("switch_weights", ("abc",), "these weights are not loaded"),
            ("switch_weights", ("abc", "later"), "mode must be one of finish, continue, abort"),
            ("load_arrays", ("/nowhere", [("x", "F32", (1,), 0, 4)]), "no tensor 'x'"),
            ("collective_rpc", ("eval",), "ranks have no method 'eval'"),
            ("sleep", (3,), "level must be 1 or 2"),
            ("wake_up", (["cats"],), "tags are weights and kv_cache"),
        ],
        start=20,
    ):
        ok, answer = await ask(engine, number, method, *args)
        assert not ok
        assert text in answer
    fixed = Engine(VersionedExecutor())
    assert await ask(fixed, 30, "load_weights", "x") == (False, "the weights of this engine cannot be replaced")


async def test_sleep_forgets_blocks_and_requests_go_on_after_it(source: WeightsSource) -> None:
    executor = VersionedExecutor()
    engine = engine_of(source, executor)
    engine.submit(1, [1, 2, 3], max_tokens=30)
    await engine.core.step()
    assert await ask(engine, 10, "sleep", 1, "keep") == (True, None)
    assert (executor.allocated, engine.core.stats()["num_used_blocks"]) == ((), 0)
    assert await ask(engine, 11, "is_sleeping") == (True, True)
    executor.die("killed")  # New ranks sleep, too.
    await engine.core.step()
    assert executor.allocated == ()
    assert await ask(engine, 12, "wake_up") == (True, None)
    await engine.run_dry()
    assert engine.outputs()[1] == ([4 + index for index in range(30)], FinishCode.LENGTH)
    assert await ask(engine, 13, "is_sleeping") == (True, False)


def test_arrays_replace_tensors_and_unused_files_are_left_out(source: WeightsSource, tmp_path: Path) -> None:
    path = tmp_path / "arrays"
    path.write_bytes(bytes(4 * 48))
    norm = SharedArray("model.norm.weight", "F32", (48,), 0, 192)
    once = with_arrays(source.first, str(path), [norm])
    assert once.files == (*source.first.files, str(path))
    assert once.version != with_arrays(once, str(path), [norm]).version
    again = with_arrays(once, str(path), [norm])
    assert again.files == once.files
    assert {entry.source.name for entry in again.tensors if entry.source.file == 1} == {"model.norm.weight"}
    with pytest.raises(ConfigError, match=r"has the shape \(47,\), and the model's tensor \(48,\)"):
        with_arrays(source.first, str(path), [msgspec.structs.replace(norm, shape=(47,))])
    with pytest.raises(ConfigError, match="cannot be read"):
        with_arrays(source.first, str(tmp_path / "absent"), [norm])


def test_another_dtype_is_the_same_model_and_dummies_are_refused(source: WeightsSource) -> None:
    second = read_weights(str(folder_of(source) / "second"), Hub(), source.first, CONTEXT)
    assert second.spec == source.first.spec
    assert second.fingerprint != source.first.fingerprint
    dummy = msgspec.structs.replace(source.first, format="dummy", files=())
    with pytest.raises(ConfigError, match="is generated cannot be replaced"):
        read_weights(str(folder_of(source) / "second"), Hub(), dummy, CONTEXT)
