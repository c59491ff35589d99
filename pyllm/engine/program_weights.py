"""The weights that a program gives to its engine after the start: a path, or arrays, whose memory must stay."""

import asyncio
import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from pyllm.client.client import EngineClient
from pyllm.engine.shared_arrays import SharedArrays


class ProgramWeights:
    """Holds the memory of the arrays that an engine computes with: each update replaces those of its names."""

    def __init__(self) -> None:
        self._of_name: dict[str, SharedArrays] = {}
        self._uncertain: list[SharedArrays] = []

    async def update(self, client: EngineClient, weights: str | PathLike[str] | Mapping[str, Any], mode: str) -> str:
        """Update the weights of an engine, see `AsyncEngine.update_weights`; returns their version."""
        if not isinstance(weights, Mapping):
            version = await client.update_weights(_absolute(os.fspath(weights)), mode)
            self.close()
            return version
        arrays = await asyncio.to_thread(SharedArrays, weights)
        try:
            version = await client.update_arrays(arrays.path, arrays.entries, mode)
        except BaseException:
            self._uncertain.append(arrays)  # A core may have switched to them all the same.
            raise
        self._replace(arrays)
        return version

    def close(self) -> None:
        """Free all memory: the engine has other weights, or has ended."""
        for each in (*set(self._of_name.values()), *self._uncertain):
            each.close()
        self._of_name.clear()
        self._uncertain.clear()

    def _replace(self, new: SharedArrays) -> None:
        """Note that the engine uses `new`; memory whose arrays have all been replaced is freed."""
        before = set(self._of_name.values())
        self._of_name |= dict.fromkeys((entry.name for entry in new.entries), new)
        for each in before - set(self._of_name.values()):
            each.close()


def _absolute(place: str) -> str:
    """The absolute path of a model here, as processes may be in other folders; a name of the hub stays as it is."""
    return str(Path(place).absolute()) if Path(place).exists() else place
