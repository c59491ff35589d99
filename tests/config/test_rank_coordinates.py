"""Ranks are numbered stage by stage, and the first of the last stage samples."""

from pyllm.config.engine_settings import ParallelConfig
from pyllm.config.rank_coordinates import RankCoordinates, coordinates_of, num_ranks, ranks_of_stage, sampling_rank


def test_the_ranks_of_a_stage_follow_one_another() -> None:
    parallel = ParallelConfig(tensor_parallel_size=2, pipeline_parallel_size=3)
    assert num_ranks(parallel) == 6
    found = [coordinates_of(rank, parallel) for rank in range(6)]
    assert found == [RankCoordinates(stage, tensor_rank) for stage in range(3) for tensor_rank in range(2)]
    assert [list(ranks_of_stage(stage, parallel)) for stage in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert sampling_rank(parallel) == 4


def test_alone_a_rank_is_all() -> None:
    assert (num_ranks(ParallelConfig()), coordinates_of(0, ParallelConfig()), sampling_rank(ParallelConfig())) == (
        1,
        (0, 0),
        0,
    )
