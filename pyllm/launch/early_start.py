"""The first processes of a server, started before its model is known: they import while its description is read."""

import contextlib
import socket
from types import TracebackType

from pyllm.config.engine_settings import SEQUENCES, EngineConfig
from pyllm.config.process_config import CoreConfig
from pyllm.launch import topology
from pyllm.machine.cuda_driver import visible_cards
from pyllm.supervision.child_process import ChildProcess


class EarlyStart:
    """A core with its first worker, and an API process. A context manager: at its end those not taken are killed.

    There is no core where the settings or a card show that it would not fit. A process that cannot be started, or that
    ends before it is taken, is left out: the server starts another one later, and reports that one's error.
    """

    def __init__(self, engine: EngineConfig, listener: socket.socket) -> None:
        self._engine = engine
        self._listener = listener
        self._core: ChildProcess | None = None
        self._api: ChildProcess | None = None
        self._max_num_seqs = engine.scheduler.max_num_seqs or SEQUENCES

    def __enter__(self) -> "EarlyStart":
        with contextlib.suppress(OSError):
            if _is_light(self._engine):
                self._core = topology.spare_core(self._max_num_seqs)
            self._api = topology.spawn_api("API process 0", self._listener)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill the processes that were not taken."""
        for process in (self._core, self._api):
            if process is not None:
                process.abandon()
        self._core = self._api = None

    def take_core(self, config: CoreConfig) -> ChildProcess | None:
        """The core, if there is one and it can have this configuration."""
        if self._core is None or self._core.has_ended() or not topology.fits_spare(config, self._max_num_seqs):
            return None
        core, self._core = self._core, None
        return core

    def take_api(self) -> ChildProcess | None:
        """The API process, if there is one."""
        if self._api is None or self._api.has_ended():
            return None
        api, self._api = self._api, None
        return api


def _is_light(engine: EngineConfig) -> bool:
    """Whether its workers are processes without torch, as far as can be said without the model."""
    device = engine.device
    is_on_cpu = device.device == "cpu" or (device.device == "auto" and not visible_cards())
    needs_torch = device.kernel_backend == "triton" or engine.model.model_impl == "transformers"
    is_usual = engine.parallel.distributed_executor_backend == "mp" and not engine.cache.kv_offloading_size
    return is_on_cpu and is_usual and not needs_torch
