"""Placers choose one of several cores for a request: in turn, or by prefixes and load. Know no connections."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from pyllm._rust import Placement
from pyllm.recording import Recording
from pyllm.wire.messages import LoadReport, ModelInfo, Submit

# "failover": one core at a time, and the next address once it is lost.
PlacementKind = Literal["prefix", "round-robin", "failover"]


class Placer(Protocol):
    """Chooses cores for requests. Cores are named by index, requests by the id that cores know: unique and rising."""

    def add(self, core: int) -> None:
        """Add a core that has no requests and an empty prefix cache."""

    def remove(self, core: int) -> None:
        """Forget a core; unknown ones are ignored."""

    def place(self, request: int, first: Submit, session: str, cores: Sequence[int]) -> int:
        """Choose one of `cores` (at least one), and remember that this request is there.

        `first` is the request as first sent, without its id.
        """

    def ended(self, request: int) -> None:
        """Forget a request that has ended, or gets another id; unknown ones are ignored."""

    def update_core(self, core: int, report: LoadReport) -> None:
        """Take a core's load report."""

    def change_weights(self, version: str) -> None:
        """Name blocks by another version of the weights from now on."""

    def beat(self) -> None:
        """Advance time by half a second."""

    def close(self) -> None:
        """Release resources; no more requests will be placed."""


class RoundRobin:
    """Each core in turn, regardless of load."""

    def __init__(self) -> None:
        self._last = -1

    def add(self, core: int) -> None:
        pass

    def remove(self, core: int) -> None:
        pass

    def place(self, request: int, first: Submit, session: str, cores: Sequence[int]) -> int:
        del request, first, session
        self._last = min((core for core in cores if core > self._last), default=min(cores))
        return self._last

    def ended(self, request: int) -> None:
        pass

    def update_core(self, core: int, report: LoadReport) -> None:
        pass

    def change_weights(self, version: str) -> None:
        pass

    def beat(self) -> None:
        pass

    def close(self) -> None:
        pass


class PrefixPlacer:
    """The core that is expected to finish first, by its load and the prompt tokens in its prefix cache.

    All inputs are written to the file `recording`, if given, for `pyllm replay`.

    Raises:
        ConfigError: the file exists, or cannot be made.
    """

    def __init__(self, model: ModelInfo, recording: Path | None = None) -> None:
        self._placement = Placement(
            block_size=model.block_size,
            prefix_hash=model.prefix_hash,
            prefix_hash_seed=model.prefix_hash_seed,
            cache_namespace=model.cache_namespace,
        )
        self._version = ""
        self._cores: set[int] = set()
        self._recording = None
        if recording is not None:
            self._recording = Recording(recording, self._placement.take_recording)
            self._placement.start_recording()

    def add(self, core: int) -> None:
        self.remove(core)
        self._placement.add_core(core)
        self._cores.add(core)

    def remove(self, core: int) -> None:
        if core in self._cores:
            self._cores.remove(core)
            self._placement.remove_core(core)

    def place(self, request: int, first: Submit, session: str, cores: Sequence[int]) -> int:
        core, _ = self._placement.place(
            request,
            first.prompt,
            first.max_tokens,
            cores,
            num_samples=first.n,
            tenant=first.tenant,
            cache_salt=first.cache_salt,
            adapter=first.adapter,
            session=session,
        )
        return core

    def ended(self, request: int) -> None:
        self._placement.ended(request)

    def update_core(self, core: int, report: LoadReport) -> None:
        self._placement.update_core(core, report.last_request, report.changes, report.load)

    def change_weights(self, version: str) -> None:
        if version != self._version:
            self._version = version
            self._placement.change_weights(version)

    def beat(self) -> None:
        if self._recording is not None:
            self._recording.gather()
            self._recording.flush()

    def close(self) -> None:
        if self._recording is not None:
            self._recording.close()
