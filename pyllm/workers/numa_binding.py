"""The NUMA node of each rank on a CPU: its threads compute there, so the memory that they write first is there, too."""

import logging
import os
from collections.abc import Sequence, Set

from pyllm.config.process_config import WorkerConfig
from pyllm.config.rank_coordinates import index_among_all, num_all_ranks
from pyllm.machine.processor import NumaNode, cores_in, numa_nodes

logger = logging.getLogger(__name__)


def bind_to_node(config: WorkerConfig) -> None:
    """Keep the calling thread, and those that it starts, on the CPUs of the rank's node."""
    engine = config.engine
    if engine.device.device != "cpu" or config.host:  # Ray places the ranks of several machines.
        return
    rank = index_among_all(config.core_index, config.rank, engine.parallel)
    usable = os.sched_getaffinity(0)
    cpus = cpus_of_rank(rank, num_all_ranks(engine.parallel), numa_nodes(), usable)
    if cpus == usable or (engine.device.num_threads or 0) > len(cpus):
        return
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        logger.warning("rank %d is not bound to a NUMA node: %s", rank, error)
    else:
        logger.info("rank %d computes on the CPUs of one NUMA node: %s", rank, sorted(cpus))


def cpus_of_rank(rank: int, ranks: int, nodes: Sequence[NumaNode], usable: Set[int]) -> Set[int]:
    """The usable CPUs of one node, if nodes have equally many and can share the ranks evenly; else all of them."""
    there = [cpus for node in nodes if (cpus := usable & set(cores_in(node.cores)))]
    is_even = len(there) > 1 and ranks % len(there) == 0 and len({len(cpus) for cpus in there}) == 1
    return there[rank * len(there) // ranks] if is_even else usable
