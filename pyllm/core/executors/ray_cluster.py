"""The Ray cluster of the ranks: the connection to it, and reservations on its nodes.

In core/executors only this module and the actor import Ray, and only when it is used. Knows no workers.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

from pyllm.errors import ConfigError, StartError
from pyllm.machine.extras import missing_extra

POLL_INTERVAL = 1.0  # seconds between two checks for room
STRATEGY_TIMEOUT = 10.0  # seconds to try one placement of the ranks before another
WARN_INTERVAL = 30.0
CONNECT_TIMEOUT = 5.0  # seconds until the head's address counts as wrong

logger = logging.getLogger(__name__)


class ReservedGroup(NamedTuple):
    """A placement group with room for all ranks; `bundles` has the bundle of each rank."""

    group: Any
    bundles: Sequence[int]


class RankResources(NamedTuple):
    """The resources of each rank, and the number of ranks in a stage, which should share a node."""

    num_ranks: int
    ranks_per_stage: int
    cpus: int
    gpus: int

    def of(self, num_ranks: int) -> dict[str, float]:
        """The resources of `num_ranks` ranks on one node."""
        needs = {"CPU": float(self.cpus * num_ranks), "GPU": float(self.gpus * num_ranks)}
        return {name: amount for name, amount in needs.items() if amount}


def connect(address: str) -> Any:
    """Join the cluster, unless this process has; returns the module `ray`.

    It is slow: call it on a thread, where Ray also leaves this process's signal handlers alone.

    Raises:
        ConfigError: Ray is not installed, or the address is that of a Ray Client server.
        StartError: the cluster does not answer.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ConfigError(f"distributed_executor_backend is ray ({error}), and {missing_extra('ray', 'ray')}") from None
    if "://" in address:
        raise ConfigError(
            f"ray_address {address} is not the address of a cluster: give HOST:PORT, and start on one of its nodes"
        )
    if not ray.is_initialized():
        logging.getLogger("ray").setLevel(logging.ERROR)  # It warns about signal handlers that it does not install.
        try:
            _reach(address)
            ray.init(address=address, log_to_driver=False, configure_logging=False, namespace="pyllm")
        except Exception as error:  # Ray's layers raise ConnectionError, ValueError, RuntimeError.
            raise StartError(
                f"no Ray cluster answers at {address}: {error}; start one with `ray start --head`, join it on every "
                "node, and give its address as --ray-address"
            ) from error
    return ray


def _reach(address: str) -> None:
    """Check the address: raises OSError if no server listens there. Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT).close()


async def reserve(ray: Any, resources: RankResources, patience: float) -> ReservedGroup:
    """Reserve room for all ranks: each stage on a node of its own if possible, otherwise ranks on any nodes.

    Waits until nodes have room or join, at most `patience` seconds.

    Raises:
        StartError: there was no room; the text has the need, and the cluster's resources.
    """
    loop = asyncio.get_running_loop()
    began = warned = loop.time()
    attempt = 0
    while True:
        bundles, strategy = await _choose(ray, resources, attempt)
        group = ray.util.placement_group(bundles, strategy=strategy)
        tried = loop.time()
        try:
            while not await asyncio.to_thread(group.wait, POLL_INTERVAL):
                now = loop.time()
                if now - warned >= WARN_INTERVAL:
                    warned = now
                    logger.warning("waiting for room on the Ray cluster: %s", await _shortage(ray, resources))
                if now - began >= patience:
                    raise StartError(
                        f"no room on the Ray cluster within {patience:g} s: {await _shortage(ray, resources)}"
                    )
                if now - tried >= STRATEGY_TIMEOUT:
                    break
            else:
                size = resources.num_ranks // len(bundles)
                return ReservedGroup(group, [rank // size for rank in range(resources.num_ranks)])
        except BaseException:
            ray.util.remove_placement_group(group)
            raise
        ray.util.remove_placement_group(group)
        attempt += 1


async def _choose(ray: Any, resources: RankResources, attempt: int) -> tuple[list[dict[str, float]], str]:
    """The bundles and the strategy: by stages at every other attempt from the first, if a stage fits a node."""
    stage = resources.of(resources.ranks_per_stage)
    nodes = await asyncio.to_thread(ray.nodes)
    fits = any(
        node["Alive"] and all(node["Resources"].get(name, 0) >= amount for name, amount in stage.items())
        for node in nodes
    )
    if resources.ranks_per_stage == 1 or (fits and attempt % 2 == 0):
        return [stage] * (resources.num_ranks // resources.ranks_per_stage), "SPREAD"
    return [resources.of(1)] * resources.num_ranks, "PACK"


async def _shortage(ray: Any, resources: RankResources) -> str:
    each = " and ".join(f"{amount:g} {name}" for name, amount in resources.of(1).items())
    total, free = await asyncio.to_thread(lambda: (ray.cluster_resources(), ray.available_resources()))
    has = ", ".join(f"{free.get(name, 0):g} of {total.get(name, 0):g} {name} free" for name in resources.of(1))
    num_nodes = sum(node["Alive"] for node in await asyncio.to_thread(ray.nodes))
    return (
        f"{resources.num_ranks} rank(s) need {each} each, and {num_nodes} node(s) have {has}; add nodes, end what else "
        "takes them, or set --ray-num-cpus"
    )
