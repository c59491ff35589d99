"""The NUMA node of each rank on a CPU: its threads compute there, so the memory that they write first is there, too."""

import logging
import os
from collections.abc import Sequence, Set

from pyllm.config.process_config import WorkerConfig
from pyllm.config.rank_coordinates import num_ranks
from pyllm.machine.processor import NumaNode, cores_in, numa_nodes

logger = logging.getLogger(__name__)


def bind_to_node(config: WorkerConfig) -> None:
    """Keep the calling thread, and those that it starts, on the CPUs of the rank's node."""
    parallel = config.engine.parallel
    if config.engine.device.device != "cpu" or config.host:
        return
    rank = config.core_index * num_ranks(parallel) + config.rank
    usable = os.sched_getaffinity(0)
    cpus = cpus_of_rank(rank, parallel.data_parallel_size * num_ranks(parallel), numa_nodes(), usable)
    if cpus != usable:
        os.sched_setaffinity(0, cpus)
        logger.info("rank %d computes on the CPUs of one NUMA node: %s", config.rank, sorted(cpus))


def cpus_of_rank(rank: int, ranks: int, nodes: Sequence[NumaNode], usable: Set[int]) -> Set[int]:
    """The usable CPUs of one node, if each node can have as many ranks as the others; else all of them."""
    there = [cpus for node in nodes if (cpus := usable & set(cores_in(node.cores)))]
    return usable if len(there) < 2 or ranks % len(there) else there[rank * len(there) // ranks]
