"""The number of threads with which each rank computes on this machine. Starts none."""

import logging
import math
import os
from collections.abc import Set
from pathlib import Path

from pyllm.config.engine_settings import ParallelConfig
from pyllm.config.rank_coordinates import num_all_ranks
from pyllm.machine.control_groups import cpu_quota
from pyllm.machine.processor import count_cores

logger = logging.getLogger(__name__)


def threads_of_each_rank(parallel: ParallelConfig, usable: Set[int] | None = None, root: Path = Path("/")) -> int:
    """An equal share of the cores that this process may use (of `usable`, its affinity mask); with Ray `ray_num_cpus`.

    Hardware threads of one core share its multipliers, so they count once.

    A lower CPU quota of a control group, as from `docker --cpus` or Kubernetes, replaces their number, and the log says
    so: with more threads, the kernel would stop all of them for the rest of each period.
    """
    if parallel.distributed_executor_backend == "ray":
        return parallel.ray_num_cpus
    num_usable = count_cores(os.sched_getaffinity(0) if usable is None else usable, root)
    ranks = num_all_ranks(parallel)
    quota = cpu_quota(root)
    if quota is None or quota >= num_usable:
        return max(1, num_usable // ranks)
    threads = max(1, math.floor(quota) // ranks)
    logger.info(
        "the control group gives time for %g of %d cores: each rank computes with %d of them (--num-threads)",
        *(quota, num_usable, threads),
    )
    return threads
