"""The coordinates of each rank: its stage of the pipeline, and its number among the tensor-parallel ranks there.

The one definition of rank numbers. Knows no process and no machine.
"""

from typing import NamedTuple

from pyllm.config.engine_settings import ParallelConfig


class RankCoordinates(NamedTuple):
    """Those of rank number `stage * tensor_parallel_size + tensor_rank`: ranks of one stage follow one another."""

    stage: int
    tensor_rank: int


def num_ranks(parallel: ParallelConfig) -> int:
    """How many ranks compute the model together."""
    return parallel.pipeline_parallel_size * parallel.tensor_parallel_size


def coordinates_of(rank: int, parallel: ParallelConfig) -> RankCoordinates:
    """The stage of a rank, and its number there."""
    return RankCoordinates(*divmod(rank, parallel.tensor_parallel_size))


def ranks_of_stage(stage: int, parallel: ParallelConfig) -> range:
    """The ranks that compute one stage's layers together."""
    first = stage * parallel.tensor_parallel_size
    return range(first, first + parallel.tensor_parallel_size)


def sampling_rank(parallel: ParallelConfig) -> int:
    """The rank that chooses the tokens and answers steps: the first of the last stage."""
    return ranks_of_stage(parallel.pipeline_parallel_size - 1, parallel).start
