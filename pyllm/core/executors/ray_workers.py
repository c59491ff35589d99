"""Workers on the nodes of a Ray cluster: each an actor's child, reached over encrypted TCP.

Chooses addresses and keys. Knows neither the work of workers nor the supervision of their processes.
"""

import asyncio
import logging
import os
import secrets
import signal
import threading
from typing import Any

import msgspec

from pyllm.checkpoint.types import Checkpoint
from pyllm.config.process_config import CoreConfig, WorkerConfig
from pyllm.config.rank_coordinates import num_ranks
from pyllm.core.executors.rank_actor import ActorLocation, RankActor
from pyllm.core.executors.rank_relay import RankRelay
from pyllm.core.executors.ray_cluster import RankResources, ReservedGroup, connect, reserve
from pyllm.core.executors.worker_source import PreparedRank
from pyllm.errors import StartError
from pyllm.supervision.child_process import ChildProcess
from pyllm.wire import curve

ROOT_CAUSE_TIMEOUT = 1.0  # seconds to find out whether a rank failed because another one was lost

logger = logging.getLogger(__name__)


class RayWorkers:
    """A `WorkerSource` of Ray actors. Each start has its own actors, keys, ports and rendezvous.

    Rank r is on the node of stage r // tensor_parallel_size. Keys and the ranks' secret are made for the
    start and passed to the actors as arguments; they are not written to files.
    """

    def __init__(self, config: CoreConfig) -> None:
        self._config = config
        self._checkpoint = config.checkpoint
        self._ray: Any = None
        self._reserved: ReservedGroup | None = None
        self._actors: list[Any] = []
        self._relays: list[RankRelay] = []

    def use_weights(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    async def prepare(self) -> list[PreparedRank]:
        await self.release()
        config = self._config
        parallel, is_gpu = config.engine.parallel, config.engine.device.device == "cuda"
        self._ray = ray = await asyncio.to_thread(connect, parallel.ray_address)
        _keep_signal_handlers()
        size, num_cpus = parallel.tensor_parallel_size, parallel.ray_num_cpus
        resources = RankResources(num_ranks(parallel), size, num_cpus, int(is_gpu))
        self._reserved = await reserve(ray, resources, config.ready_timeout)
        group = self._reserved.group
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        actor = ray.remote(RankActor)
        self._actors = [
            actor.options(
                num_cpus=resources.cpus, num_gpus=resources.gpus, scheduling_strategy=strategy(group, bundle)
            ).remote()
            for bundle in self._reserved.bundles
        ]
        locations = await self._locations()
        checkpoint = _with_absolute_files(self._checkpoint)
        # Ranks share memory only on one node, and only if they see one another's GPUs.
        engine = msgspec.structs.replace(
            config.engine, parallel=msgspec.structs.replace(parallel, disable_custom_all_reduce=True)
        )
        rendezvous = f"tcp://{locations[0].host}:{locations[0].free_port}"
        rank_secret = secrets.token_bytes(32)
        prepared = []
        for rank, location in enumerate(locations):
            node_id, host = location.node_id[:8], location.host
            logger.info("rank %d of core %d is on node %s (%s)", rank, config.index, node_id, host)
            keys = curve.key_pairs()
            worker = WorkerConfig(
                engine=engine,
                checkpoint=checkpoint,
                rank=rank,
                address=f"tcp://{host}:0",
                rendezvous=rendezvous,
                core_index=config.index,
                gpu=location.gpu,
                host=host,
                curve_keys=keys.server,
                client_key=keys.client.public,
                rank_secret=rank_secret,
            )
            prepared.append(PreparedRank(worker, keys.client))
        return prepared

    async def start(self, worker: WorkerConfig) -> ChildProcess:
        actor, ray = self._actors[worker.rank], self._ray
        name = f"worker {worker.rank} of core {worker.core_index}"
        relay = RankRelay(name, actor, lambda: ray.kill(actor), self._wait_for_root_cause)
        self._relays.append(relay)
        await relay.start()
        return relay.child

    async def release(self) -> None:
        relays, self._relays = self._relays, []
        for relay in relays:
            relay.close()
        actors, self._actors = self._actors, []
        reserved, self._reserved = self._reserved, None
        for actor in actors:
            self._ray.kill(actor)
        if reserved is not None:
            await asyncio.to_thread(self._ray.util.remove_placement_group, reserved.group)

    async def close(self) -> None:
        """Do nothing: Ray ends all actors of a job that has ended."""

    async def _locations(self) -> list[ActorLocation]:
        patience = self._config.ready_timeout
        try:
            async with asyncio.timeout(patience):
                locations = await asyncio.gather(*(each.locate.remote() for each in self._actors))
        except TimeoutError:
            raise StartError(f"no actor of the ranks was ready within {patience:g} s; see `ray list actors`") from None
        except self._ray.exceptions.RayError as error:
            raise StartError(
                f"an actor of the ranks did not start: {error}; every node needs Ray and pyllm, of the same versions"
            ) from error
        return [ActorLocation(*location) for location in locations]

    async def _wait_for_root_cause(self) -> None:
        """Wait for the end of any rank that has not failed by itself."""
        others = [relay.child.exited for relay in self._relays]
        if len(others) > 1:
            await asyncio.wait(others, timeout=ROOT_CAUSE_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)


def _with_absolute_files(checkpoint: Checkpoint) -> Checkpoint:
    return msgspec.structs.replace(checkpoint, files=tuple(os.path.abspath(file) for file in checkpoint.files))


def _keep_signal_handlers() -> None:
    """Restore this process's handlers of ending signals: Ray's native handlers would write a stack for each."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            if (handler := signal.getsignal(number)) is not None:  # None: not set by Python
                signal.signal(number, handler)
                signal.siginterrupt(number, False)
