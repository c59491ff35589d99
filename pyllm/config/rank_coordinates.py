"""The coordinates of each rank: its pipeline stage, and its index among the tensor-parallel ranks of that stage.

The only definition of rank numbers. Knows no process and no machine.
"""

from typing import NamedTuple

from pyllm.config.engine_settings import ParallelConfig


class RankCoordinates(NamedTuple):
    """Coordinates of rank `stage * tensor_parallel_size + tensor_rank`: the ranks of one stage are consecutive."""

    stage: int
    tensor_rank: int


def num_ranks(parallel: ParallelConfig) -> int:
    """The number of ranks that compute the model together."""
    return parallel.pipeline_parallel_size * parallel.tensor_parallel_size


def num_all_ranks(parallel: ParallelConfig) -> int:
    """The number of ranks of all cores."""
    return parallel.data_parallel_size * num_ranks(parallel)


def index_among_all(core_index: int, rank: int, parallel: ParallelConfig) -> int:
    """The index of a core's rank among the ranks of all cores."""
    return core_index * num_ranks(parallel) + rank


def coordinates_of(rank: int, parallel: ParallelConfig) -> RankCoordinates:
    """The stage of a rank, and its index there."""
    return RankCoordinates(*divmod(rank, parallel.tensor_parallel_size))


def ranks_of_stage(stage: int, parallel: ParallelConfig) -> range:
    """The ranks that compute one stage's layers together."""
    first = stage * parallel.tensor_parallel_size
    return range(first, first + parallel.tensor_parallel_size)


def sampling_rank(parallel: ParallelConfig) -> int:
    """The rank that samples tokens and returns the result of a step: the first of the last stage."""
    return ranks_of_stage(parallel.pipeline_parallel_size - 1, parallel).start
