"""A replica of the deployment of cores: a headless core in its own processes, on this node, for the API's replicas.

Takes no requests from Ray Serve; clients connect over encrypted TCP. Knows no HTTP.
"""

import asyncio
import contextlib
import hashlib
import logging
from pathlib import Path
from typing import Any

import msgspec

from pyllm.client.client import EngineClient
from pyllm.client.core_connection import over_zeromq
from pyllm.config.engine_settings import EngineConfig
from pyllm.config.process_config import CoreConfig
from pyllm.config.rank_coordinates import num_ranks
from pyllm.errors import EngineDeadError, PyllmError
from pyllm.launch import topology
from pyllm.launch.resolve import resolve_config
from pyllm.ray.core_registry import BEAT_INTERVAL, CoreRegistration, CoreRegistry
from pyllm.ray.scaling_policy import KV_USE, QUEUED_TOKENS
from pyllm.supervision.server_processes import STOP_GRACE
from pyllm.supervision.supervised_process import SupervisedProcess
from pyllm.wire import curve
from pyllm.wire.sockets import SocketFolder

logger = logging.getLogger(__name__)


class CoreReplica:
    """The core of one replica. Ray Serve calls its methods."""

    def __init__(self, engine: EngineConfig, ready_timeout: float, leave_timeout: float) -> None:
        self._engine = engine
        self._ready_timeout = ready_timeout
        self._leave_timeout = leave_timeout
        self._settings = settings_hash(engine)
        self._folder: SocketFolder | None = None
        self._processes: list[SupervisedProcess] = []
        self._client: EngineClient | None = None
        self._beating: asyncio.Task[None] | None = None
        self._loss: PyllmError | None = None

    async def start(self) -> None:
        """Start the core, and register it once it is ready.

        Raises:
            PyllmError: the core cannot start; the text has the stage it was in.
        """
        import ray
        from ray import serve

        context = serve.get_replica_context()
        self._registry, self._name = CoreRegistry(context.app_name), context.replica_id.unique_id
        engine = self._engine
        if engine.parallel.distributed_executor_backend == "ray" and engine.parallel.ray_address == "auto":
            address = ray.get_runtime_context().gcs_address
            parallel = msgspec.structs.replace(engine.parallel, ray_address=address)
            engine = msgspec.structs.replace(engine, parallel=parallel)
        engine = _with_threads(engine, ray.get_runtime_context().get_assigned_resources().get("CPU", 0))
        engine, checkpoint = await asyncio.to_thread(resolve_config, engine)
        keys = await self._registry.keys()
        self._folder = SocketFolder()
        curve.write_server_keys(Path(self._folder.path, "keys"), keys)
        config = CoreConfig(
            engine=engine,
            checkpoint=checkpoint,
            bind=f"tcp://{ray.util.get_node_ip_address()}:*",
            socket_folder=self._folder.path,
            curve_keys=f"{self._folder.path}/keys",
            ready_timeout=self._ready_timeout,
            shutdown_timeout=2 * self._leave_timeout,  # long enough for clients to move running requests to other cores
            fork_server=topology.fork_server_address(engine, checkpoint, self._folder.path),
        )
        self._processes = [process for group in topology.supervised_engine([config]) for process in group]
        try:
            address, *_ = await asyncio.gather(*(process.start(self._lose) for process in self._processes))
        except BaseException:
            await self.stop()
            raise
        for process in self._processes:
            process.stand_by()
        connect = over_zeromq(address, keys.client)
        self._client = EngineClient(connect, addresses=[address])
        await self._client.start()
        self._entry = CoreRegistration(address, self._settings, self._client.base_fingerprint)
        self._beating = asyncio.ensure_future(self._beat())

    async def statistics(self) -> dict[str, float]:
        """The metrics for the autoscaler: known tokens not computed yet, and the share of KV blocks in use."""
        if self._client is None:
            return {}
        stats = await self._client.stats()
        kv_use = stats["num_used_blocks"] / max(1, stats["num_blocks"])
        return {QUEUED_TOKENS: float(stats["num_uncomputed_tokens"]), KV_USE: kv_use}

    def check(self) -> None:
        """Raise an error if the core will not come back."""
        if self._loss is not None:
            raise EngineDeadError(str(self._loss))

    async def stop(self) -> None:
        """Unregister the core, let its clients move their streams to others, and end it."""
        has_left = True
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait({self._beating})
            await self._registry.remove(self._name)
            has_left = await self._wait_until_left()
        if self._client is not None:
            self._client.close()
        processes, self._processes = self._processes, []
        for process in processes:
            if not has_left:
                process.kill()  # An orderly end would end its requests, which the next core is to continue.
        for process in processes:
            await process.stop(STOP_GRACE)
        if self._folder is not None:
            self._folder.close()

    async def _wait_until_left(self) -> bool:
        """Wait until the core has no requests, and no clients but this replica's own; False on a timeout or error."""
        assert self._client is not None
        with contextlib.suppress(TimeoutError, PyllmError):
            async with asyncio.timeout(self._leave_timeout):
                while True:
                    stats = await self._client.stats()
                    if not stats["num_requests"] and stats["num_clients"] <= 1:
                        return True
                    await asyncio.sleep(BEAT_INTERVAL / 4)
        logger.warning("requests are left at a core that ends: they wait for the next one")
        return False

    async def _beat(self) -> None:
        beat = 0
        while True:
            beat += 1
            await self._registry.put(self._name, msgspec.structs.replace(self._entry, beat=beat))
            await asyncio.sleep(BEAT_INTERVAL)

    def _lose(self, reason: BaseException) -> None:
        self._loss = reason if isinstance(reason, PyllmError) else EngineDeadError(str(reason))


def _with_threads(engine: EngineConfig, cpus: float) -> EngineConfig:
    """The settings with Ray's CPUs shared among the ranks in the replica, unless a number of threads is set."""
    if engine.device.num_threads or not cpus or engine.parallel.distributed_executor_backend == "ray":
        return engine
    device = msgspec.structs.replace(engine.device, num_threads=max(1, int(cpus) // num_ranks(engine.parallel)))
    return msgspec.structs.replace(engine, device=device)


def settings_hash(engine: EngineConfig) -> str:
    """A hash that is equal for two replicas with the same settings."""
    return hashlib.blake2b(msgspec.json.encode(engine), digest_size=16).hexdigest()


def deployment_class() -> Any:
    """The class of Ray Serve's replicas."""

    class Cores:
        """Cores of pyllm."""

        async def __init__(  # type: ignore[misc]  # Ray Serve awaits it.
            self, engine: EngineConfig, ready_timeout: float, leave_timeout: float
        ) -> None:
            self._core = CoreReplica(engine, ready_timeout, leave_timeout)
            await self._core.start()

        async def record_autoscaling_stats(self) -> dict[str, float]:
            return await self._core.statistics()

        def check_health(self) -> None:
            self._core.check()

        async def __del__(self) -> None:
            await self._core.stop()

    return Cores
