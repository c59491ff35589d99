"""Versions of the weights on one rank: loaded beside the one that computes or in its place, freed, and loaded again."""

from pathlib import Path

import msgspec
import pytest

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError, ProtocolError
from pyllm.workers.model_runner import ModelRunner
from tests.plans import Planner
from tests.tiny_model import write_tiny_model
from tests.workers.engine import greedy, loaded_runner

PROMPT = [1, 2, 3, 4, 5]


def encoded(path: Path) -> bytes:
    return msgspec.msgpack.encode(read_checkpoint(str(path)))


def tokens(runner: ModelRunner) -> list[int]:
    return greedy(runner, Planner(), 0, PROMPT, 8)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_tiny_model(tmp_path_factory.mktemp("other"), seed=7))


@pytest.mark.parametrize("beside", [True, False])
def test_a_version_computes_once_all_of_it_is_loaded(runner: ModelRunner, other: Path, beside: bool) -> None:
    before, expected = tokens(runner), tokens(loaded_runner(str(other)))
    size, _ = runner.call("weights_room")
    runner.call("begin_weights", (encoded(other), beside))
    with pytest.raises(ProtocolError, match="not loaded yet"):
        runner.call("switch_weights")
    if beside:
        assert tokens(runner) == before
    else:
        assert runner.call("weights_room")[0] == 0
        with pytest.raises(ProtocolError, match="before the KV cache"):
            tokens(runner)
    while not runner.call("load_weights", (0.0,)):
        pass
    runner.call("switch_weights")
    assert tokens(runner) == expected != before
    assert runner.call("weights_room")[0] == size


def test_a_version_may_be_forgotten(runner: ModelRunner, other: Path) -> None:
    before = tokens(runner)
    runner.call("begin_weights", (encoded(other), True))
    runner.call("drop_weights")
    assert tokens(runner) == before
    for method, arguments in (("load_weights", (1.0,)), ("switch_weights", ())):
        with pytest.raises(ProtocolError, match="begin_weights comes before"):
            runner.call(method, arguments)


def test_freed_weights_are_read_again(runner: ModelRunner) -> None:
    before = tokens(runner)
    runner.call("sleep", (True,))
    with pytest.raises(ProtocolError, match="there are no weights"):
        runner.call("statistics")
    runner.call("wake_weights")
    runner.call("allocate", (64,))
    assert tokens(runner) == before
    assert runner.call("weights_room")[0] > 0


@pytest.mark.parametrize("beside", [True, False])
def test_files_that_are_not_those_described_are_refused(runner: ModelRunner, tmp_path: Path, beside: bool) -> None:
    folder = Path(write_tiny_model(tmp_path, seed=8))
    described, before = encoded(folder), tokens(runner)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        runner.call("begin_weights", (described, beside))
    assert tokens(runner) == before
