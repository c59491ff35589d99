"""The version of the weights that a core computes with: loads another one beside it or in its place, and switches.

Reads no tensors, which the ranks do. The scheduler recomputes running requests, and keeps blocks of versions apart.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args

import msgspec

from pyllm._rust import Scheduler
from pyllm.checkpoint.types import Checkpoint, weights_fingerprint
from pyllm.core.executors.executor import Executor
from pyllm.core.executors.host_inventory import HostInventory
from pyllm.core.kept_state import KeptState
from pyllm.core.pausing import Pausing
from pyllm.errors import ConfigError, EngineDeadError, RequestError, WorkerDeadError
from pyllm.families.tensors import FileTensor
from pyllm.wire.messages import PauseMode, Ready, SharedArray, SwitchMode

if TYPE_CHECKING:
    from pyllm.checkpoint.hub import Hub

SWITCH_MODES = get_args(SwitchMode)
# Seconds that ranks load weights between two steps.
TURN_SECONDS = 0.02
# Of the memory that is available, the share that other weights may take beside those that compute.
ROOM_SHARE = 0.9
NO_LIMIT = 1e9  # seconds

_PAUSES: dict[SwitchMode, PauseMode] = {"finish": "wait", "continue": "keep", "abort": "abort"}

logger = logging.getLogger(__name__)


class WeightsSource(NamedTuple):
    """The place of other versions: the first one with its settings, and where the hub's are kept."""

    first: Checkpoint
    hub: "Hub"
    max_model_len: int
    overrides: dict[str, object]
    is_cpu: bool

    def read(self, path: str) -> Checkpoint:
        """The description of another version, which has the digest of all its bytes as `version`.

        Raises:
            ConfigError: it is missing, damaged, or of another model.
        """
        from pyllm.checkpoint.cache import weights_digest
        from pyllm.checkpoint.reader import read_weights  # It imports all families.

        found = read_weights(path, self.hub, self.first, self.max_model_len, self.overrides)
        try:
            return msgspec.structs.replace(found, version=weights_digest(found.files))
        except OSError as error:
            raise ConfigError(f"the weights at {path} cannot be read: {error}") from None


def versioned(ready: Ready, version: str) -> Ready:
    """`Ready` of a core with this version of the weights."""
    return msgspec.structs.replace(ready, model=msgspec.structs.replace(ready.model, weights_version=version))


class _Pending(NamedTuple):
    """A version that can be switched to; `is_beside`: the ranks have loaded it beside the one that computes."""

    checkpoint: Checkpoint
    is_beside: bool


class Weights:
    """The weights of one core, at first `current`. `announce` is called with each new version, and whether
    requests go on with it. `refuse` gives a request of a client back, which has begun with other weights.

    Without a `source` the weights stay as they are, and calls are refused.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        source: WeightsSource | None,
        current: Checkpoint | None,
        *,
        pausing: Pausing,
        changing: asyncio.Lock,
        kept: KeptState,
        inventory: HostInventory,
        announce: Callable[[str, bool], object],
        refuse: Callable[[int, int], object],
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._source = source
        self._current = current
        self._pausing = pausing
        self._kept = kept
        self._inventory = inventory
        self._announce = announce
        self._refuse = refuse
        self._pending: _Pending | None = None
        self._changing = changing

    @property
    def version(self) -> str:
        """The digest of the weights; empty for those that the engine was started with."""
        return self._current.version if self._current is not None else ""

    async def load(self, path: str) -> str:
        """Load another version beside the one that computes, while that goes on; returns the version, for `switch`.

        Where memory is short it is only read and checked, and loaded in the place of the other one by `switch`.

        Raises:
            RequestError: it cannot be used; nothing has changed.
        """
        if self._source is None:
            raise RequestError("the weights of this engine cannot be replaced")
        async with self._changing:
            try:
                checkpoint = await asyncio.to_thread(self._source.read, path)
            except ConfigError as error:
                raise RequestError(str(error), "path") from None
            await self._prepare(checkpoint)
        return checkpoint.version

    async def load_arrays(self, path: str, arrays: Sequence[SharedArray]) -> str:
        """Load arrays in shared memory beside the weights that compute; tensors without one stay as they are.

        Raises:
            RequestError: there is no tensor of a name, or it has another shape; nothing has changed.
        """
        if self._source is None or self._current is None:
            raise RequestError("the weights of this engine cannot be replaced")
        async with self._changing:
            try:
                checkpoint = await asyncio.to_thread(with_arrays, self._current, path, arrays)
            except ConfigError as error:
                raise RequestError(str(error), "weights") from None
            await self._prepare(checkpoint)
        return checkpoint.version

    async def switch(self, version: str, mode: SwitchMode) -> None:
        """Compute with a version that was loaded, from the next step on; `mode` says how running requests go on.

        Raises:
            RequestError: it is not loaded, or cannot be loaded now; the one before goes on computing.
        """
        async with self._changing:
            if version == self.version:
                await self._forget()
                return
            if self._pending is None or self._pending.checkpoint.version != version:
                raise RequestError("these weights are not loaded: load them again")
            if mode == "finish" and self._pausing.is_frozen:
                text = "requests that have begun are paused, and cannot end: resume, or use the mode continue or abort"
                raise RequestError(text, "mode")
            try:
                await self._pausing.hold(_PAUSES[mode])
                await self._switch(self._pending, continues=mode == "continue")
                self._pending = None
            except BaseException:
                await self._forget()
                raise
            finally:
                self._pausing.release()

    async def drop(self) -> None:
        """Forget a version that was loaded and not switched to."""
        async with self._changing:
            await self._forget()

    def workers_lost(self) -> None:
        """Note that new ranks have none of what was loaded beside."""
        if self._pending is not None:
            self._pending = self._pending._replace(is_beside=False)

    async def _prepare(self, checkpoint: Checkpoint) -> None:
        """Load a version beside the current one, if there is room. Raises RequestError."""
        await self._forget()
        if checkpoint.version == self.version:
            return
        try:
            is_beside = await self._has_room()
            if is_beside:
                await self._load_into_ranks(checkpoint, is_beside=True, seconds=TURN_SECONDS)
            else:
                logger.warning("memory is short: other weights are loaded in the place of those that compute")
        except WorkerDeadError as error:
            raise RequestError(f"the workers died meanwhile: {error}; try again") from None
        except EngineDeadError as error:
            await self._drop_from_ranks()
            raise RequestError(f"the weights cannot be used: {error}", "path") from None
        self._pending = _Pending(checkpoint, is_beside)

    async def _has_room(self) -> bool:
        """Whether another version fits beside the one that computes, on every rank."""
        assert self._source is not None, "load has refused it"
        rooms = [tuple(room) for room in await self._executor.collective("weights_room")]
        if self._source.is_cpu:  # All ranks are on this machine, or on one like it.
            return bool(sum(needed for needed, _ in rooms) <= ROOM_SHARE * min(free for _, free in rooms))
        return all(bool(needed <= ROOM_SHARE * free) for needed, free in rooms)

    async def _load_into_ranks(self, checkpoint: Checkpoint, *, is_beside: bool, seconds: float) -> None:
        await self._executor.collective("begin_weights", msgspec.msgpack.encode(checkpoint), is_beside)
        while not all(await self._executor.collective("load_weights", seconds)):
            pass

    async def _switch(self, pending: _Pending, *, continues: bool) -> None:
        """Switch all ranks while nothing runs. Raises RequestError."""
        before = self._current
        assert before is not None, "there is a source"
        if not pending.is_beside:
            await self._load_in_place(pending.checkpoint)
        # From here on new ranks and cores have the new version, so that there is one everywhere whatever dies.
        self._use(pending.checkpoint)
        try:
            await self._executor.collective("switch_weights")
        except WorkerDeadError as death:
            logger.warning("the next workers start with the new weights: %s", death)
        except EngineDeadError as error:
            self._use(before)
            self._executor.kill("killed")  # The ranks may be between two versions: new ones have the one before.
            raise RequestError(f"the weights cannot be used: {error}", "path") from None
        self._scheduler.reconfigure(weights_version=pending.checkpoint.version)
        if (reset := self._inventory.reset()) is not None:
            await reset
        logger.info("the weights are version %s from now on: %s", self.version[:16], pending.checkpoint.files[0])
        self._announce(self.version, continues)
        if not continues:  # Requests of lost cores may have come during the switch.
            for client, request in self._scheduler.begun_requests():
                self._refuse(client, request)

    async def _load_in_place(self, checkpoint: Checkpoint) -> None:
        """Load a version in the place of the current one. Raises RequestError; then new ranks have the current one."""
        try:
            await self._load_into_ranks(checkpoint, is_beside=False, seconds=NO_LIMIT)
        except WorkerDeadError as death:
            raise RequestError(f"the workers died meanwhile: {death}; the weights are those before") from None
        except EngineDeadError as error:
            self._executor.kill("killed")  # The ranks may have parts of both versions: new ones have the one before.
            raise RequestError(f"the weights cannot be used: {error}", "path") from None

    async def _forget(self) -> None:
        """Forget a version that was loaded and not switched to."""
        pending, self._pending = self._pending, None
        if pending is not None and pending.is_beside:
            await self._drop_from_ranks()

    def _use(self, checkpoint: Checkpoint) -> None:
        self._current = checkpoint
        self._executor.use_weights(checkpoint)
        self._kept.use_weights(msgspec.msgpack.encode(checkpoint))

    async def _drop_from_ranks(self) -> None:
        try:
            await self._executor.collective("drop_weights")
        except EngineDeadError as error:
            logger.warning("weights that were not used are gone with their worker: %s", error)


def with_arrays(current: Checkpoint, path: str, arrays: Sequence[SharedArray]) -> Checkpoint:
    """The checkpoint with some tensors replaced by arrays in the file at `path`.

    Raises:
        ConfigError: a tensor is not there, quantised with scales, or of another shape, or the file cannot be read.
    """
    if current.quantization or current.format == "dummy" or current.spec.transformers is not None:
        raise ConfigError("arrays replace tensors of floats, or of GGUF files; this model has others")
    known = {entry.source.name: entry.source for entry in current.tensors}
    new = {}
    for array in arrays:
        if (tensor := known.get(array.name)) is None:
            raise ConfigError(f"the model's files have no tensor {array.name!r:.200} that the model needs")
        if tensor.shape != array.shape:
            raise ConfigError(f"{array.name} has the shape {array.shape}, and the model's tensor {tensor.shape}")
        new[array.name] = FileTensor(
            array.name, array.kind, array.shape, len(current.files), array.offset, array.num_bytes
        )
    tensors = [
        msgspec.structs.replace(entry, source=new.get(entry.source.name, entry.source)) for entry in current.tensors
    ]
    files = (*current.files, path)
    used = sorted({entry.source.file for entry in tensors})
    places = {file: place for place, file in enumerate(used)}
    entries = tuple(
        msgspec.structs.replace(entry, source=msgspec.structs.replace(entry.source, file=places[entry.source.file]))
        for entry in tensors
    )
    kept = tuple(files[file] for file in used)
    try:
        with Path(path).open("rb") as file:
            content = hashlib.file_digest(file, "blake2b").digest()
        fingerprint = weights_fingerprint(kept, entries)
    except OSError as error:
        raise ConfigError(f"the arrays cannot be read, which must be on the cores' machine: {error}") from None
    named = msgspec.msgpack.encode((current.version or current.fingerprint, arrays, content))
    version = hashlib.blake2b(named, digest_size=32).hexdigest()
    return msgspec.structs.replace(current, files=kept, tensors=entries, fingerprint=fingerprint, version=version)


def kept_checkpoint(kept: bytes | None) -> Checkpoint | None:
    """The version of the weights that the core before computed with, if it was another one than at the start."""
    return msgspec.msgpack.decode(kept, type=Checkpoint) if kept else None
