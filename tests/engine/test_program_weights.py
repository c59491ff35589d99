"""The memory of a program's arrays stays as long as a core may compute with it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from pyllm.client.client import EngineClient
from pyllm.engine.program_weights import ProgramWeights
from pyllm.errors import RequestError
from pyllm.wire.messages import SharedArray


class Engine:
    """Takes any weights, unless it `refuses` them; `paths` are those of the memory that it got."""

    def __init__(self) -> None:
        self.refuses = False
        self.paths: list[str] = []

    async def update_weights(self, path: str, mode: str) -> str:
        self.paths.append(path)
        return mode

    async def update_arrays(self, path: str, arrays: Sequence[SharedArray], mode: str) -> str:
        self.paths.append(path)
        if self.refuses:
            raise RequestError("no")
        return mode


def updated(weights: ProgramWeights, engine: Engine, given: Any) -> str:
    return asyncio.run(weights.update(cast(EngineClient, engine), given, "finish"))


def test_memory_is_freed_when_all_its_arrays_are_replaced() -> None:
    array, weights, engine = np.zeros(3, np.float32), ProgramWeights(), Engine()
    for names in ("ab", "a"):
        assert updated(weights, engine, dict.fromkeys(names, array)) == "finish"
    both, _ = engine.paths
    assert Path(both).exists()
    updated(weights, engine, {"b": array})
    assert not Path(both).exists()
    engine.refuses = True
    with pytest.raises(RequestError):
        updated(weights, engine, {"a": array})
    assert all(Path(path).exists() for path in engine.paths[1:])
    weights.close()
    assert not any(Path(path).exists() for path in engine.paths)


def test_a_path_replaces_all_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, engine = ProgramWeights(), Engine()
    updated(weights, engine, {"a": np.zeros(3, np.float32)})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "step-2").mkdir()
    for path in ("step-2", "owner/name"):
        updated(weights, engine, path)
    assert not Path(engine.paths[0]).exists()
    assert engine.paths[1:] == [str(tmp_path / "step-2"), "owner/name"]
